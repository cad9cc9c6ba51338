"""Whether `flatout bench slow-host` finds what is known: on a CPU, no delay can hide.

    python3 benchmarks/slow_host_check.py [--workloads mlp,charlm,mnist-large] [--quick]

Each microsecond before each launch must make the step longer by as many microseconds as there are
launches, each later batch by its delay, and a host that may run half of the time must take twice as
long. The exit code is 1 if one of the first two is off by more than a quarter, interval included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import msgspec
from support.dated import Measurement, machine_text, measurement, read_machine, write_result

from flatout.bench.slow_host import SlowHostCommand, slow_host
from flatout.schema.slow_host import SlowHostReport
from flatout.schema.tuning import Interval

RESULTS = Path(__file__).with_name("results")
ALLOWED = 0.25


def main() -> int:
    """Measures each workload, prints a table, writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="mlp,charlm,mnist-large")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    options = parser.parse_args()
    machine = read_machine()
    print(f"machine   {machine_text(machine)}")
    print(f"{'':14}{'launches':>9}{'step':>9}  {'of delays before launches':<28}"
          f"{'of late batches':<26}{'half of the time':<24}")  # fmt: skip
    reports = []
    for name in options.workloads.split(","):
        reports.append(report_of(name, is_quick=options.quick))
        _print(reports[-1])
    rows = [row for report in reports for row in rows_of(report)]
    details = {report.workload: msgspec.to_builtins(report) for report in reports}
    path = write_result("slow-host", machine, rows, details, options.out)
    is_reached = all(
        _is_near(response.felt)
        for report in reports
        for response in (report.operators, report.loader)
    )
    word = "reached" if is_reached else "MISSED"
    print(f"goal      delays are felt as they are, within {ALLOWED:.0%}: {word}")
    print(f"written   {path}")
    return 0 if is_reached else 1


def report_of(workload: str, *, is_quick: bool) -> SlowHostReport:
    """The command's result on the CPU."""
    command = SlowHostCommand(workload=workload, device="cpu", is_quick=is_quick)
    [report] = [value for value in slow_host(command) if isinstance(value, SlowHostReport)]
    return report


def rows_of(report: SlowHostReport) -> Iterator[Measurement]:
    """All samples of a workload, and its slopes."""
    common = {"workload": report.workload, "size": report.size, "threads": report.num_threads}
    for level in report.levels:
        conditions = {**common, "slower": level.what, "by": level.amount}
        yield measurement(
            f"{report.workload}: {level.what} {level.amount:g}", "s", level.samples, conditions
        )
    for response in (report.operators, report.loader):
        felt = response.felt
        if felt is not None:
            yield Measurement(
                name=f"{report.workload}: {response.what}, felt", value=felt.middle, unit="share",
                spread=(felt.low, felt.high), conditions=common,
            )  # fmt: skip


def _is_near(felt: Interval | None) -> bool:
    """Whether the interval touches what is allowed."""
    return felt is not None and felt.low <= 1 + ALLOWED and felt.high >= 1 / (1 + ALLOWED)


def _print(report: SlowHostReport) -> None:
    texts = []
    for response in (report.operators, report.loader):
        felt = response.felt
        texts.append("hidden" if felt is None else _text(felt))
    half = next(quota.ratio for quota in report.quotas if quota.share == 0.5)
    step_s = median(report.levels[0].samples)
    print(f"{report.workload:14}{report.operators.num_per_step:9,}{1e3 * step_s:6.1f} ms  "
          f"{texts[0]:<28}{texts[1]:<26}{_text(half):<24}", flush=True)  # fmt: skip
    for text in (*report.words, *report.warnings):
        print(f"{'':14}{text}", flush=True)


def _text(interval: Interval) -> str:
    return f"x{interval.middle:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
