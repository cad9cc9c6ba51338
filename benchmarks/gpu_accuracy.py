"""Whether faster recipes of `mnist-large` learn as much: the same accuracy, over several seeds.

    python benchmarks/gpu_accuracy.py --device cuda [--seeds 5] [--minutes 9] [--quick]

The whole training of 14 epochs, by `flatout train mnist-large`, in fp32 without TF32; in bf16 with
channels_last; and both again with updates in CUDA graphs, eight per launch. Accuracy is that on
the 10,000 test images after the last epoch: the best of 14 would reward luck. A recipe learns as
much if its mean is at most 0.1 points below that of fp32, or within the difference that chance
explains for so many seeds. Each training is stored in `gpu-accuracy.jsonl` when it ends: after
`--minutes` no training is started, and the next command continues from there. `--quick` trains a
tiny size for one epoch, also on a CPU, without graphs, and neither judges nor stores anything.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.schema.units import percent_text, seconds_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from accuracy import trained
from support import dated

RESULTS = Path(__file__).with_name("results")
_GRAPH = {"capture": "step", "steps_per_launch": 8}
_BF16 = {"precision": "bf16", "memory_format": "channels_last"}
RECIPES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": _BF16,
    "fp32, captured": {"precision": "fp32", **_GRAPH},
    "bf16, captured": {**_BF16, **_GRAPH},
}
# The share of images by which a mean may be lower in any case, and in how many standard errors of a
# difference of two means chance seldom goes.
_LEAST, _ERRORS = 0.001, 2.0
_KEPT = "gpu-accuracy.jsonl"
# The exit code if another run would continue from here.
UNFINISHED = 75


def main() -> int:
    """Trains, prints a table, writes the result; 1 if a recipe learns less than fp32."""
    options = _options()
    is_gpu = options.device.startswith("cuda")
    names = [name for name, use in RECIPES.items() if is_gpu or "capture" not in use]
    kept = Kept(None if options.quick else options.out / _KEPT)
    failed: set[str] = set()
    is_complete = _train(names, kept, failed, options)
    found = {name: kept.values(name, "accuracy") for name in names}
    times = {name: kept.values(name, "seconds") for name in names}
    lost = []
    for name in names:
        # A spread, and whether a recipe learns as much, needs two.
        if min(len(found[name]), len(found["fp32"])) < 2:
            continue
        mean, spread = statistics.mean(found[name]), statistics.stdev(found[name])
        is_equal = learns_as_much(found[name], found["fp32"])
        lost += [] if is_equal else [name]
        said = "" if options.quick or is_equal else "; LESS than fp32"
        print(
            f"{name:15} {percent_text(mean, 2)} (standard deviation {percent_text(spread, 2)}) in "
            f"{seconds_text(statistics.median(times[name]))}; {len(found[name])} seeds{said}"
        )
    if not is_complete:
        print(f"not finished: run it again with --out {options.out}")
        return UNFINISHED
    machine = dated.read_machine()
    print(f"\nmachine   {dated.machine_text(machine)}")
    if options.quick:
        return int(bool(failed))
    measurements = [
        dated.measurement(f"mnist-large {name}: {what}", unit, tuple(values[name]), RECIPES[name])
        for what, unit, values in (("accuracy", "1", found), ("seconds", "s", times))
        for name in names
        if values[name]
    ]
    details = {"lost": lost, "failed": sorted(failed)}
    path = dated.write_result("gpu-accuracy", machine, measurements, details, options.out)
    print(f"written   {path}")
    kept.clear()
    return int(bool(lost or failed))


class Kept:
    """Finished trainings, stored on disk one by one.

    path: a file with one line for each; None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        is_there = path is not None and path.exists()
        text = path.read_text(encoding="utf-8") if path is not None and is_there else ""
        # One that was ended while it was written counts as not trained.
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        self._rows: list[dict[str, Any]] = [json.loads(line) for line in whole]
        if path is not None and "".join(whole) != text:
            path.write_text("".join(whole), encoding="utf-8")

    def has(self, name: str, seed: int) -> bool:
        """Whether that training is stored."""
        return any((row["name"], row["seed"]) == (name, seed) for row in self._rows)

    def add(self, row: dict[str, Any]) -> None:
        """Stores one: name, seed, accuracy, seconds."""
        self._rows.append(row)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def clear(self) -> None:
        """Deletes them: the next command starts from the beginning."""
        self._rows.clear()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def values(self, name: str, field: str) -> list[float]:
        """One of their numbers, for all seeds of a recipe."""
        return [row[field] for row in self._rows if row["name"] == name]


def _train(names: Sequence[str], kept: Kept, failed: set[str], options: argparse.Namespace) -> bool:
    """Runs the missing trainings; False if time ran out first.

    A recipe that fails is noted, and the others continue.
    """
    began_s = time.monotonic()
    longest_s = 0.0
    for seed in range(options.seeds):
        for name in names:
            if kept.has(name, seed) or name in failed:
                continue
            if time.monotonic() - began_s + longest_s > 60 * options.minutes:
                return False
            try:
                run, seconds = trained(_arguments(RECIPES[name], seed, options))
            except SystemExit as error:
                failed.add(name)
                print(f"  {name}, seed {seed}: {error}", flush=True)
                continue
            longest_s = max(longest_s, seconds)
            accuracy = run["validations"][-1]["metrics"]["accuracy"]
            kept.add({"name": name, "seed": seed, "accuracy": accuracy, "seconds": seconds})
            said = f"{percent_text(accuracy, 2)} in {seconds_text(seconds)}"
            print(f"  {name}, seed {seed}: {said}", flush=True)
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds: 0, 1, 2 ...")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no training after this many minutes"
    )
    parser.add_argument("--quick", action="store_true", help="train a tiny size, and judge nothing")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: a spread needs at least 2")
    return options


def _arguments(use: dict[str, Any], seed: int, options: argparse.Namespace) -> list[str]:
    arguments = ["mnist-large", "--tune", "off", "--device", options.device, "--seed", str(seed)]
    if options.quick:
        arguments += ["-s", "size=tiny", "-s", "epochs=1", "-s", "samples=640"]
    for name, value in use.items():
        arguments += ["--use", f"{name}={value}"]
    return arguments


def learns_as_much(values: Sequence[float], plain: Sequence[float]) -> bool:
    """Whether one mean accuracy is not further below another than allowed."""
    variances = [statistics.variance(found) / len(found) for found in (values, plain)]
    allowed = max(_LEAST, _ERRORS * math.sqrt(sum(variances)))
    return statistics.mean(values) >= statistics.mean(plain) - allowed


if __name__ == "__main__":
    sys.exit(main())
