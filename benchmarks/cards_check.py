"""How wrong `flatout bench cards` is: published throughput predicted from that of other cards.

    python3 benchmarks/cards_check.py

Every card of a series of public figures (src/flatout/bench/public_figures.toml) is predicted from
every other one. The width of the interval comes from the series of one program; it is then checked
on what it has not seen: other programs (held out), each workload without its own series, and each
card without its own figures. From FLOPs only, as after a measurement on a CPU, each series is
predicted from the shares of the others. Takes a second; needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import Measurement, measurement, read_machine, write_result

from flatout.bench.card_model import (
    COVERED,
    PairError,
    factor_of,
    pair_errors,
    rates_of,
    transfer_error,
)
from flatout.bench.card_tables import PublishedSeries, date_of, shipped_cards, shipped_series

RESULTS = Path(__file__).with_name("results")


def main() -> int:
    """Predicts, prints a table, writes the result; 1 if the intervals hold too few figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    options = parser.parse_args()
    seen = pair_errors([one for one in shipped_series() if not one.is_held_out])
    held_out = pair_errors([one for one in shipped_series() if one.is_held_out])
    print(f"figures   of {date_of('public_figures.toml')}")
    print(f"{'':46}{'pairs':>6}{'median':>8}{'largest':>9}{'width':>7}{'inside':>8}")
    rows = []
    workloads = tuple(dict.fromkeys(one.workload for one in seen))
    for name in workloads:
        own = [one for one in seen if one.workload == name]
        rows.append(reported(f"seen: {name}", own, transfer_error(name)))
    for name in dict.fromkeys(one.workload for one in held_out):
        own = [one for one in held_out if one.workload == name]
        rows.append(reported(f"other programs: {name}", own, transfer_error(name)))
    for name in workloads:
        own = [one for one in seen if one.workload == name]
        width = max(_widths([one for one in seen if one.workload != name]))
        rows.append(reported(f"workload unseen: {name}", own, width))
    for name in shipped_cards():
        own = [one for one in seen if name in (one.source, one.target)]
        if own:
            width = max(_widths([one for one in seen if name not in (one.source, one.target)]))
            rows.append(reported(f"card unseen: {name}", own, width))
    num_inside = sum(_inside(one.log_error, transfer_error(one.workload)) for one in held_out)
    flops = list(flops_only())
    rows.append(_flops_row(flops))
    print()
    for one in held_out:
        print(
            f"{one.series:32}{one.source[-22:]:>23} -> {one.target[-22:]:22}"
            f"{one.predicted:10,.0f} /{one.published:9,.0f} {100 * _off(one):+5.0f} %"
        )
    details = {
        "interval_factors": {name: transfer_error(name) for name in (*workloads, "others")},
        "held_out": [
            {"series": one.series, "from": one.source, "to": one.target,
             "predicted": one.predicted, "published": one.published} for one in held_out
        ],
    }  # fmt: skip
    path = write_result("cards-check", read_machine(), rows, details, options.out)
    is_reached = num_inside >= COVERED * len(held_out)
    word = "reached" if is_reached else "MISSED"
    print(f"goal      {COVERED:.0%} of the figures of other programs inside: {word}")
    print(f"written   {path}")
    return 0 if is_reached else 1


def reported(name: str, errors: Sequence[PairError], factor: float) -> Measurement:
    """Prints a row, and gives it as a measurement of errors, as shares."""
    sizes = [abs(one.log_error) for one in errors]
    inside = sum(_inside(one.log_error, factor) for one in errors) / len(errors)
    print(f"{name:46}{len(errors):6}{math.expm1(statistics.median(sizes)):8.0%}"
          f"{math.expm1(max(sizes)):9.0%}{factor:7.2f}{inside:8.0%}")  # fmt: skip
    conditions = {"pairs": len(errors), "interval_factor": factor, "inside": inside}
    return measurement(name, "share", tuple(math.expm1(size) for size in sizes), conditions)


def _widths(errors: Sequence[PairError]) -> Iterator[float]:
    """The width of each workload's interval."""
    for name in {one.workload for one in errors}:
        yield factor_of([one for one in errors if one.workload == name])


def flops_only() -> Iterator[tuple[float, bool]]:
    """The errors of predictions from FLOPs, each series from others of its workload.

    Gives the logarithm of predicted by published, and whether it was inside the others' shares.
    """
    single = [one for one in shipped_series() if one.num_devices == 1]
    for one in single:
        others = [share for other in single if other.name != one.name
                  and other.workload == one.workload for share in _shares(other)]  # fmt: skip
        if not others:
            others = [
                share for other in single if other.name != one.name for share in _shares(other)
            ]
        ordered = sorted(others)
        cut = int((1 - COVERED) / 2 * len(ordered))
        for share in _shares(one):
            is_inside = ordered[cut] <= share <= ordered[-1 - cut]
            yield math.log(statistics.median(others) / share), is_inside


def _shares(series: PublishedSeries) -> list[float]:
    found = []
    for name, rate in series.samples_per_s.items():
        rates = rates_of(shipped_cards()[name], series.dtype)
        if rates is not None:
            found.append(rate * series.flops_per_sample / rates.flops)
    return found


def _flops_row(errors: Sequence[tuple[float, bool]]) -> Measurement:
    sizes = [abs(error) for error, _ in errors]
    inside = sum(is_inside for _, is_inside in errors) / len(errors)
    print(f"{'FLOPs only, as from a CPU':46}{len(errors):6}"
          f"{math.expm1(statistics.median(sizes)):8.0%}"
          f"{math.expm1(max(sizes)):9.0%}{'':7}{inside:8.0%}")  # fmt: skip
    return measurement("FLOPs only", "share", tuple(math.expm1(size) for size in sizes),
                       {"figures": len(errors), "inside": inside})  # fmt: skip


def _inside(log_error: float, factor: float) -> bool:
    return abs(log_error) <= math.log(factor)


def _off(one: PairError) -> float:
    return one.predicted / one.published - 1


if __name__ == "__main__":
    sys.exit(main())
