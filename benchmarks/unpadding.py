"""The speed gained by not computing the padding of batches of sequences with real lengths.

    python benchmarks/unpadding.py [--device cpu] [--size small] [--rounds 9] [--cpu-time]

The built-in `bert-large` with its defaults and with `padded=false`: the same weights, the speeches
of tiny Shakespeare in the same order, flatout's step without a search (bf16 on a GPU). The two take
turns, some updates at a time; a ratio compares two adjacent turns. `small` is a network for a CPU,
with sequences of up to 384 as in the `full` one, and `tiny` one with sequences of up to 64.
`--cpu-time` measures CPU time instead of wall time, on one thread: use it if other programs are
running.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.session.step_kinds import shared_step
from flatout.engine.tuner.ab_timing import RecipeLoop
from flatout.experiments import bert_large

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import dated

SIZES = {
    **bert_large.SIZES,
    "small": bert_large.BertSize(depth=4, width=256, num_heads=4, length=384, vocabulary=1_128),
}
GOAL = 1.8


class Contestant:
    """bert-large, padded or not, some updates at a time."""

    def __init__(self, options: argparse.Namespace, *, is_padded: bool) -> None:
        size = SIZES[options.size]
        described = bert_large.experiment(padded=is_padded, batch_size=options.batch_size)
        experiment = replace(
            described,
            model=lambda: bert_large.build_model(size, padded=is_padded),
            train_data=lambda: bert_large.MaskedSpeeches(
                bert_large.read_speeches(size.length, is_test=False)
            ),
            validation_data=None,
            metrics=None,
        )
        built = build(experiment, 0, options.device)
        use: dict[str, Any] = {"loader_workers": 0, "deterministic": False}
        if built.device.type == "cuda":
            use["precision"] = "bf16"
        elif options.cpu_time:
            use["num_threads"] = 1
        self._recipe = built.recipe(use)
        self._device = built.device
        self._clock: Callable[[], float] = (
            time.process_time if options.cpu_time else time.perf_counter
        )
        with process_settings(self._recipe):
            session = Session(built, self._recipe)
            timer = StepTimer(session.device)
            step: Any = shared_step(session, timer)
            self._loop = RecipeLoop(session, step, timer)
            self._loop.run(2)

    def samples_per_s(self, num_updates: int) -> float:
        """Over so many updates, including the device's work."""
        with process_settings(self._recipe):
            self._wait()
            begin = self._clock()
            num_samples = self._loop.run(num_updates)
            self._wait()
            return num_samples / (self._clock() - begin)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def main() -> int:
    """Measures, prints the ratio, writes the result; 1 if it is below the goal on a GPU."""
    options = _options()
    lengths = _lengths(SIZES[options.size].length)
    share = sum(lengths) / (len(lengths) * SIZES[options.size].length)
    print(
        f"{len(lengths):,} speeches: median {statistics.median(lengths):.0f}, mean "
        f"{statistics.mean(lengths):.0f} of {SIZES[options.size].length} tokens; "
        f"{share:.0%} of a padded batch is text"
    )
    padded, unpadded = (Contestant(options, is_padded=is_padded) for is_padded in (True, False))
    speeds: dict[str, list[float]] = {"padded": [], "unpadded": []}
    for number in range(options.rounds):
        # Each round begins with the other one.
        turns = [("padded", padded), ("unpadded", unpadded)]
        for name, one in turns if number % 2 else reversed(turns):
            speeds[name].append(one.samples_per_s(options.updates))
    ratios = sorted(
        after / before for before, after in zip(speeds["padded"], speeds["unpadded"], strict=True)
    )
    ratio = statistics.median(ratios)
    for name, found in speeds.items():
        print(f"{name:9} {statistics.median(found):8,.2f} sequences/s")
    # Without the one farthest off on each side.
    print(f"unpadded / padded: {ratio:.2f} [{ratios[1]:.2f}, {ratios[-2]:.2f}]")
    return _report(options, speeds, ratios, share)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=list(SIZES), help="default: full on a GPU, else small")
    parser.add_argument("--batch-size", type=int, help="batch size (default: 64 on a GPU, else 16)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=4, help="updates per round and contestant")
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time, on one thread")
    parser.add_argument("--out", type=Path, help="output folder; without it no result is written")
    options = parser.parse_args()
    is_gpu = options.device.startswith("cuda")
    options.size = options.size or ("full" if is_gpu else "small")
    options.batch_size = options.batch_size or (64 if is_gpu else 16)
    if options.rounds < 3:
        parser.error("--rounds: an interval needs at least 3")
    return options


def _lengths(length: int) -> list[int]:
    speeches = bert_large.read_speeches(length, is_test=False)
    found: list[int] = (speeches != bert_large.PAD).sum(dim=1).tolist()
    return found


def _report(
    options: argparse.Namespace, speeds: dict[str, list[float]], ratios: list[float], share: float
) -> int:
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    if options.out is not None:
        conditions = {
            name: getattr(options, name)
            for name in ("device", "size", "batch_size", "rounds", "updates", "cpu_time")
        }
        measurements = [
            dated.measurement(name, "sequences/s", tuple(found), conditions)
            for name, found in speeds.items()
        ]
        measurements.append(dated.measurement("unpadded / padded", "1", tuple(ratios), conditions))
        details = {"share_of_text": share}
        path = dated.write_result("unpadding", machine, measurements, details, options.out)
        print(f"written   {path}")
    is_judged = options.device.startswith("cuda")
    return int(is_judged and statistics.median(ratios) < GOAL)


if __name__ == "__main__":
    sys.exit(main())
