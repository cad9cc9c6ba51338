"""Whether quicker recipes of `mnist-large` learn as much: the same accuracy, over several seeds.

    python benchmarks/gpu_accuracy.py --device cuda [--seeds 5] [--quick]

The whole training of 14 epochs, by `flatout train mnist-large`, in fp32 without TF32; in bf16 with
channels_last; and both again with updates in CUDA graphs, eight at a launch. Accuracy is that on
the 10,000 test images after the last epoch: the best of 14 would be a draw from the luckier end. A
recipe learns as much if its mean is at most 0.1 points below that of fp32, or no further than
chance brings two means of so many seeds apart. `--quick` trains a tiny size for an epoch, also on a
CPU, without graphs, and judges nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dated
from accuracy import trained

from flatout.nouns.units import percent_text, seconds_text

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


def main() -> int:
    """Trains, prints a table, writes the result; 1 if a recipe learns less than fp32."""
    options = _options()
    is_gpu = options.device.startswith("cuda")
    names = [name for name, use in RECIPES.items() if is_gpu or "capture" not in use]
    found: dict[str, list[float]] = {name: [] for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(options.seeds):
        for name in names:
            run, seconds = trained(_arguments(RECIPES[name], seed, options))
            found[name].append(run["validations"][-1]["metrics"]["accuracy"])
            times[name].append(seconds)
    lost = []
    for name in names:
        mean, spread = statistics.mean(found[name]), statistics.stdev(found[name])
        is_equal = learns_as_much(found[name], found["fp32"])
        lost += [] if is_equal else [name]
        said = "" if options.quick or is_equal else "; LESS than fp32"
        print(
            f"{name:15} {percent_text(mean, 2)} (standard deviation {percent_text(spread, 2)}) in "
            f"{seconds_text(statistics.median(times[name]))}; {options.seeds} seeds{said}"
        )
    machine = dated.read_machine()
    print(f"\nmachine   {dated.machine_text(machine)}")
    if options.quick:
        return 0
    measurements = [
        dated.measurement(f"mnist-large {name}: {what}", unit, tuple(values[name]), RECIPES[name])
        for what, unit, values in (("accuracy", "1", found), ("seconds", "s", times))
        for name in names
    ]
    path = dated.write_result("gpu-accuracy", machine, measurements, {"lost": lost}, options.out)
    print(f"written   {path}")
    return int(bool(lost))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=5, help="how many: 0, 1, 2 ...")
    parser.add_argument("--quick", action="store_true", help="a tiny size, and nothing is judged")
    parser.add_argument("--out", type=Path, default=dated.RESULTS, help="folder for the result")
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
    """Whether the mean of some accuracies is not below that of others beyond what is allowed."""
    variances = [statistics.variance(found) / len(found) for found in (values, plain)]
    allowed = max(_LEAST, _ERRORS * math.sqrt(sum(variances)))
    return statistics.mean(values) >= statistics.mean(plain) - allowed


if __name__ == "__main__":
    sys.exit(main())
