"""Whether the built-in experiments still learn what they should.

    python benchmarks/accuracy.py [--only digits,mnist] [--seeds 3] [--device cpu]

Trains them as a person does, by `flatout train NAME --json`, and holds the accuracy on the test
images of the weights that are kept against its goal. `mnist` wants its data in $FLATOUT_DATA or
downloads it.
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
from pathlib import Path

import dated

from flatout.nouns.measurement import Measurement
from flatout.nouns.units import percent_text, seconds_text

GOALS = {"digits": 0.97, "mnist": 0.99}


def main() -> int:
    """Trains, prints a table, writes the result; 1 if any seed misses its goal."""
    options = _options()
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    measurements = []
    for name in options.only.split(","):
        found = [train(name, seed, options.device) for seed in range(options.seeds)]
        conditions = {"experiment": name, "device": options.device, "goal": GOALS[name]}
        for what, unit, values in (
            ("accuracy", "1", tuple(accuracy for accuracy, _ in found)),
            ("seconds", "s", tuple(seconds for _, seconds in found)),
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
        print(line_of(name, found), flush=True)
    path = dated.write_result("accuracy", machine, measurements, {}, options.out)
    print(f"written   {path}")
    worst = {m.conditions["experiment"]: min(m.samples) for m in measurements if m.unit == "1"}
    return 0 if all(worst[name] >= GOALS[name] for name in worst) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(GOALS), help="with commas between")
    parser.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, 2 ...")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=dated.RESULTS, help="folder for the result")
    return parser.parse_args()


def train(name: str, seed: int, device: str) -> tuple[float, float]:
    """Accuracy of the weights that are kept, and the seconds from command to its end."""
    command = [sys.executable, "-m", "flatout", "train", name, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        done = subprocess.run(
            [*command, f"--seed={seed}", f"--device={device}"],
            capture_output=True,
            text=True,
            env={**os.environ, "FLATOUT_STATE": folder},
        )
        seconds = time.perf_counter() - began_s
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
    validations = json.loads(done.stdout)["run"]["validations"]
    best = next(line for line in reversed(validations) if line["is_best"])
    return best["metrics"]["accuracy"], seconds


def line_of(name: str, found: list[tuple[float, float]]) -> str:
    """An experiment on one line: worst and best seed against the goal."""
    accuracies = [accuracy for accuracy, _ in found]
    verdict = "reached" if min(accuracies) >= GOALS[name] else "MISSED"
    seconds = statistics.median(seconds for _, seconds in found)
    return (
        f"{name:10}{percent_text(min(accuracies), 2)} to {percent_text(max(accuracies), 2)} in "
        f"{seconds_text(seconds)}; {len(found)} seeds; goal {percent_text(GOALS[name])}: {verdict}"
    )


if __name__ == "__main__":
    sys.exit(main())
