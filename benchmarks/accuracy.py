"""Whether the built-in experiments still learn what they should.

    python benchmarks/accuracy.py [--only digits,mnist] [--seeds 3] [--device cpu]

Trains them as a user does, with `flatout train NAME --json`, and compares the validation metric of
the kept weights, and the time, with the goals. `mnist` and `charlm` need their data in
$FLATOUT_DATA or download it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.schema.units import percent_text, seconds_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What an experiment must reach: a minimum accuracy or a maximum loss, in so many seconds.

    settings: the values of `-s`.
    """

    metric: str
    value: float
    within_s: float | None = None
    settings: tuple[str, ...] = ()

    def is_reached(self, values: list[float], seconds: list[float]) -> bool:
        """Whether every seed reached it."""
        is_in_time = self.within_s is None or max(seconds) <= self.within_s
        if self.metric == "loss":
            return is_in_time and max(values) < self.value
        return is_in_time and min(values) >= self.value

    def text(self, value: float) -> str:
        """A value of the metric, formatted for reading."""
        return f"{value:.3f}" if self.metric == "loss" else percent_text(value, 2)

    def __str__(self) -> str:
        limit = "" if self.within_s is None else f" within {seconds_text(self.within_s)}"
        sign = "<" if self.metric == "loss" else ">="
        return f"{self.metric} {sign} {self.text(self.value)}{limit}"


GOALS = {
    "digits": Goal(metric="accuracy", value=0.97),
    "mnist": Goal(metric="accuracy", value=0.99),
    "charlm": Goal(metric="loss", value=1.9, within_s=600, settings=("size=tiny",)),
}


def main() -> int:
    """Trains, prints a table, writes the result; 1 if any seed misses its goal."""
    options = _options()
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    measurements = []
    is_all_reached = True
    for name in options.only.split(","):
        goal = GOALS[name]
        found = [train(name, seed, options.device) for seed in range(options.seeds)]
        reached, seconds = ([pair[i] for pair in found] for i in range(2))
        is_reached = goal.is_reached(reached, seconds)
        is_all_reached = is_all_reached and is_reached
        conditions = {"experiment": name, "device": options.device, "goal": str(goal)}
        for what, unit, values in (
            (goal.metric, "1", tuple(reached)),
            ("seconds", "s", tuple(seconds)),
        ):
            measurements.append(
                Measurement(
                    name=f"{name} {what}",
                    value=statistics.median(values),
                    unit=unit,
                    samples=values,
                    spread=(min(values), max(values)),
                    conditions=conditions,
                )
            )
        print(
            f"{name:10}{goal.text(min(reached))} to {goal.text(max(reached))} in "
            f"{seconds_text(statistics.median(seconds))}; {len(found)} seeds; goal {goal}: "
            f"{'reached' if is_reached else 'MISSED'}",
            flush=True,
        )
    path = dated.write_result("accuracy", machine, measurements, {}, options.out)
    print(f"written   {path}")
    return 0 if is_all_reached else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(GOALS), help="comma-separated")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 0, 1, 2 ...")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    return parser.parse_args()


def train(name: str, seed: int, device: str) -> tuple[float, float]:
    """The metric of the kept weights, and the seconds from the command to its end."""
    goal = GOALS[name]
    settings = [part for setting in goal.settings for part in ("-s", setting)]
    arguments = [name, *settings, f"--seed={seed}", f"--device={device}"]
    run, seconds = trained(arguments)
    best = next(line for line in reversed(run["validations"]) if line["is_best"])
    return best["metrics"][goal.metric], seconds


def trained(arguments: list[str]) -> tuple[dict[str, Any], float]:
    """A run as `flatout train ... --json` reports it, and the seconds it took."""
    command = [sys.executable, "-m", "flatout", "train", *arguments, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "FLATOUT_STATE": folder},
        )
        seconds = time.perf_counter() - began_s
    if done.returncode:
        sys.exit(f"{arguments[0]} failed:\n{done.stdout}{done.stderr}")
    run: dict[str, Any] = json.loads(done.stdout)["run"]
    return run, seconds


if __name__ == "__main__":
    sys.exit(main())
