"""Whether the gate catches planted bugs, and how often it rejects correct configurations.

    python campaigns/gate.py [--clean 1000] [--seed 0] [--jobs 2] [--only NAME]

Each bug is planted in a small training (gate_bugs.py), under the recipe change that would cause it.
Clean configurations are drawn by seed from models, optimizers, precisions, layouts, accumulation,
schedules and data (gate_clean.py); each takes some tenths of a second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.engine.experiment import Experiment
from flatout.engine.gate import GateSubject, Maker, judge
from flatout.engine.gate.fixtures import changed
from flatout.engine.session.session import build
from flatout.schema.tuning import GateVerdict

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from gate_bugs import BUGS, NOT_HERE, Bug
from gate_clean import Clean, configuration
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")

MOST_FALSE_ALARMS, LEAST_CAUGHT = 0.01, 20


@dataclass(frozen=True)
class Judged:
    """A verdict and the seconds it took."""

    name: str
    verdict: GateVerdict
    duration_s: float

    def failed_text(self) -> str:
        """The failed checks, in words."""
        return "; ".join(
            f"{check.name} {check.measured:.1e} (allowed {check.allowed:.1e})"
            if check.measured is not None and check.allowed is not None
            else f"{check.name}: {check.note}"
            for check in self.verdict.failed
        )


def main() -> int:
    """Plants bugs, judges clean configurations, prints a table, writes the result."""
    options = _options()
    torch.set_num_threads(1)
    bugs = [bug for bug in BUGS if options.only is None or options.only in bug.name]
    caught = [judge_bug(bug) for bug in bugs]
    for bug, judged in zip(bugs, caught, strict=True):
        print_bug(bug, judged)
    clean = judge_all(range(options.seed, options.seed + options.clean), options.jobs)
    return report(bugs, caught, clean, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clean", type=int, default=1000, help="number of clean configurations")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first clean configuration")
    parser.add_argument("--jobs", type=int, default=1, help="processes for clean configurations")
    parser.add_argument("--only", help="only bugs whose name contains this")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    return parser.parse_args()


def judge_all(seeds: range, num_jobs: int) -> list[Judged]:
    """Judges the clean configurations of these seeds; prints the progress."""
    judged: list[Judged] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_jobs, context, torch.set_num_threads, (1,)) as pool:
        for seed, one in zip(seeds, pool.map(judge_seed, seeds, chunksize=5), strict=True):
            judged.append(one)
            if not one.verdict.is_passed:
                print(f"false alarm  seed {seed}: {one.name}\n             {one.failed_text()}")
            if len(judged) % 100 == 0:
                print(f"{len(judged)} clean configurations judged", file=sys.stderr, flush=True)
    return judged


def judge_seed(seed: int) -> Judged:
    """Judges the clean configuration of a seed."""
    return judge_clean(configuration(seed))


def judge_bug(bug: Bug) -> Judged:
    """Judges a planted bug."""
    fixed = {"num_threads": 1, "loader_workers": 0}
    return _judged(bug.name, bug.experiment(), bug.maker(), fixed, bug.changes)


def judge_clean(clean: Clean) -> Judged:
    """Judges a clean configuration."""
    return _judged(clean.name, clean.experiment, clean.maker, clean.fixed, clean.changes)


def _judged(
    name: str, experiment: Experiment, maker: Maker, fixed: dict[str, Any], changes: dict[str, Any]
) -> Judged:
    plain = build(experiment, 0, "cpu").recipe(fixed)
    subject = GateSubject(experiment=experiment, device="cpu", maker=maker)
    began_s = time.perf_counter()
    verdict = judge(subject, changed(plain, **changes), plain)
    return Judged(name, verdict, time.perf_counter() - began_s)


def print_bug(bug: Bug, judged: Judged) -> None:
    """One line: caught or not, and by what."""
    word = "MISSED" if judged.verdict.is_passed else "caught"
    hazard = f"hazard {bug.hazard}" if bug.hazard else ""
    first = judged.failed_text().partition(";")[0]
    print(f"{word}  {hazard:9}  {bug.name:45}  {first[:90]}")


def report(
    bugs: list[Bug], caught: list[Judged], clean: list[Judged], options: argparse.Namespace
) -> int:
    """Prints the totals and writes the result; 1 if a goal was missed."""
    num_caught = sum(not judged.verdict.is_passed for judged in caught)
    alarms = [judged for judged in clean if not judged.verdict.is_passed]
    times = sorted(judged.duration_s for judged in [*caught, *clean])
    for number, who in NOT_HERE.items():
        print(f"not here  hazard {number}: {who}")
    print(f"{num_caught} of {len(bugs)} bugs caught")
    print(f"{len(alarms)} false alarms among {len(clean)} clean configurations")
    median_s, most_s = statistics.median(times), times[-1]
    print(f"a judgement takes {median_s:.2f} s (median), {most_s:.2f} s at most")
    measurements = [
        Measurement(name="bugs caught", value=num_caught, unit="of " + str(len(bugs))),
        Measurement(name="false alarms", value=len(alarms), unit="of " + str(len(clean))),
        Measurement(
            name="judgement", value=median_s, unit="s", samples=tuple(times),
            spread=(times[0], most_s),
        ),
    ]  # fmt: skip
    closest = closest_calls(clean)
    for name, (share, who) in closest.items():
        print(f"closest  {name:20} {share:6.1%} of what is allowed  {who}")
    details = {
        "closest": closest,
        "seed": options.seed,
        "bugs": {
            bug.name: {"hazard": bug.hazard, "failed": judged.failed_text()}
            for bug, judged in zip(bugs, caught, strict=True)
        },
        "false alarms": {judged.name: judged.failed_text() for judged in alarms},
        "not here": {f"hazard {number}": who for number, who in NOT_HERE.items()},
    }
    machine = dated.read_machine()
    print(dated.write_result("gate", machine, measurements, details, options.out))
    is_missed = num_caught < len(bugs) or (options.only is None and num_caught < LEAST_CAUGHT)
    return int(is_missed or len(alarms) > MOST_FALSE_ALARMS * len(clean))


def closest_calls(clean: list[Judged]) -> dict[str, tuple[float, str]]:
    """For each check the largest share of what is allowed, and the configuration."""
    closest: dict[str, tuple[float, str]] = {}
    for judged in clean:
        for check in judged.verdict.checks:
            if check.measured is not None and check.allowed:
                share = check.measured / check.allowed
                closest[check.name] = max(closest.get(check.name, (-1.0, "")), (share, judged.name))
    return closest


if __name__ == "__main__":
    sys.exit(main())
