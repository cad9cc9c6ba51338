"""Kills trainings at random moments and checks that nothing they wrote was lost.

    python campaigns/kill_resume.py [--kills 100] [--seed 0] [--parallel 2] [--device cpu]

Each kill hits a run of its own, of hard_to_resume.py, started by `flatout train`. The run is killed
once, resumed with `flatout train --resume` until it is done, then compared with a run that was not
killed. The targets, a fourth of the kills each, are the worker, the command line, a loader's
worker, and all of them at once; a fifth of the kills waits until a checkpoint is being written. All
runs accumulate micro-batches, so a kill at any time in an epoch lands inside an update. Identical
means: the weights and the last checkpoint's tensors byte by byte, and all losses and metrics of all
epochs.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from killed_run import DATA, Killed, Moment, Runs, Target, kill_and_resume
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")

TARGETS: tuple[Target, ...] = ("worker", "command line", "loader worker", "tree")
WRITE_SHARE = 0.2
# Some kills hit while processes start: before there is a run, or anything to resume.
START_SHARE = 0.1
# A run can end, or a write can, just before the kill arrives; then another run is tried.
TRIES = 6


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One planned kill: target, moment and kind of data."""

    number: int
    target: Target
    data: str
    is_in_start: bool
    is_in_write: bool
    seed: int


def main() -> int:
    """Carries out all kills, prints each and a summary, writes the result; 1 if data was lost."""
    options = _options()
    began_s = time.perf_counter()
    plans = plan(options.kills, options.seed)
    folder = Path(tempfile.mkdtemp(prefix="kill-resume-"))
    runs = Runs(folder, options.device)
    killed = []
    with ThreadPoolExecutor(options.parallel) as pool:
        kinds = sorted({plan.data for plan in plans})
        for data, seconds in zip(kinds, pool.map(runs.make_reference, kinds), strict=True):
            print(f"not killed, {data}: {seconds:.1f} s", flush=True)
        for made, one in zip(plans, pool.map(partial(carry_out, runs), plans), strict=True):
            killed.append(one)
            print(line_of(made, one), flush=True)
    if any(one.problem for one in killed):
        print(f"the runs that differ are kept in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return report(plans, killed, time.perf_counter() - began_s, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="seed of targets, moments and data")
    parser.add_argument("--parallel", type=int, default=2, help="runs in parallel")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    return parser.parse_args()


def plan(num_kills: int, seed: int) -> list[Plan]:
    """Kills spread evenly over targets, moments and kinds of data, in a random order."""
    dice = random.Random(seed)
    num_writes, num_starts = round(WRITE_SHARE * num_kills), round(START_SHARE * num_kills)
    plans = []
    for number in range(num_kills):
        target = TARGETS[number % len(TARGETS)]
        # Only samples that are read one by one have a loader with workers to kill.
        data = "samples" if target == "loader worker" else DATA[number // len(TARGETS) % len(DATA)]
        plans.append(
            Plan(
                number=number,
                target=target,
                data=data,
                is_in_start=num_writes <= number < num_writes + num_starts,
                is_in_write=number < num_writes,
                seed=dice.getrandbits(32),
            )
        )
    dice.shuffle(plans)
    return plans


def carry_out(runs: Runs, made: Plan) -> Killed:
    """Carries out one kill and resumes; a run that the kill missed is discarded."""
    dice = random.Random(made.seed)
    # Durations were measured next to other runs than this one: a miss says in which direction.
    first, last = 0.0, 1.0
    for number in range(TRIES):
        share = dice.uniform(first, last)
        moment = Moment(share=share, is_in_start=made.is_in_start, is_in_write=made.is_in_write)
        name = f"kill-{made.number:03d}-{number}"
        killed = kill_and_resume(runs, name, made.target, made.data, moment)
        if isinstance(killed, Killed):
            if killed.problem is None:
                shutil.rmtree(runs.folder(name).path)
            return killed
        first = share if killed == "too early" else first
        last = share if killed == "too late" else last
    return Killed(problem=f"missed {TRIES} times")


def line_of(made: Plan, killed: Killed) -> str:
    """A kill on one line."""
    place = "in a write" if killed.is_in_write else ""
    return (
        f"{made.number:3d}  {made.target:14}{made.data:9}step {killed.step:4d}  {place:12}"
        f"free after {killed.wait_s:4.1f} s  {killed.problem or 'identical'}"
    )


def report(
    plans: list[Plan], killed: list[Killed], seconds: float, options: argparse.Namespace
) -> int:
    """Prints the summary and writes the result."""
    num_identical = sum(one.problem is None for one in killed)
    num_writes = sum(one.is_in_write for one in killed)
    by_target = collections.Counter(made.target for made in plans)
    machine = dated.read_machine()
    print(f"\nmachine   {dated.machine_text(machine)}")
    print("killed    " + ", ".join(f"{target} {by_target[target]}" for target in TARGETS))
    num_restored = sum(one.checkpoint_step is not None for one in killed)
    print(f"inside    a checkpoint write {num_writes}, elsewhere {len(killed) - num_writes}")
    print(f"resumed   from a checkpoint {num_restored}, from the beginning "
          f"{len(killed) - num_restored}")  # fmt: skip
    print(f"result    {num_identical} of {len(killed)} bit-identical, in {seconds:.0f} s")
    kills: list[dict[str, Any]] = [
        {
            "target": made.target,
            "data": made.data,
            "step": one.step,
            "checkpoint_step": one.checkpoint_step,
            "in_write": one.is_in_write,
            "resumes": one.num_resumes,
            "wait_s": one.wait_s,
            "problem": one.problem,
        }
        for made, one in zip(plans, killed, strict=True)
    ]
    measurements = [
        Measurement(name="kills", value=len(killed), unit="1"),
        Measurement(name="kills inside a checkpoint write", value=num_writes, unit="1"),
        Measurement(name="resumed from a checkpoint", value=num_restored, unit="1"),
        Measurement(name="bit-identical after resume", value=num_identical, unit="1"),
        Measurement(name="duration", value=seconds, unit="s"),
    ]
    details = {"seed": options.seed, "device": options.device, "kills": kills}
    path = dated.write_result("kill-resume", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 0 if num_identical == len(killed) else 1


if __name__ == "__main__":
    sys.exit(main())
