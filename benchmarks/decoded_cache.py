"""Decoded samples kept in memory, compared with the best loader setting.

    python benchmarks/decoded_cache.py [--images 400] [--rounds 5] [--cpu]

`photos` are JPEG files of 500 x 375 pixels, decoded to 224 x 224 by `data.image_folder` in batches
of 64, with a linear model; `packed` are the 512 packed pictures of
benchmarks/zoo/decoded_pictures.py without their augmentation, in batches of 16, with that model.
Only steps are timed. Loaders with 0, 1 and 2 workers read two epochs each; then the best of them
and the cache take turns, an epoch at a time. The cache's first epoch, which fills it, and the later
ones are timed separately. `--cpu` measures CPU time instead of wall time, on one thread and without
workers: use it if other programs are running.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from image_files import make_folder
from torch import nn

import flatout
from flatout.engine import data
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.step.step import EagerStep
from flatout.engine.tuner.ab_timing import RecipeLoop
from flatout.schema.units import bytes_text

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

import decoded_pictures

BYTES_PER_IMAGE = 61_000


class Packed(decoded_pictures.PackedPictures):
    """The packed pictures without augmentation, the same in each epoch."""

    def __getitem__(self, index: int) -> decoded_pictures.Sample:
        pixels = bytearray(zlib.decompress(self.packed[index]))
        picture = torch.frombuffer(pixels, dtype=torch.uint8).view(3, 96, 96).float() / 255
        scaled = nn.functional.interpolate(picture[None], size=48, mode="bilinear", antialias=True)
        return (scaled[0] - 0.45) / 0.22, self.classes[index]


class Epochs:
    """An experiment with some recipe fields, one epoch at a time."""

    def __init__(
        self, experiment: flatout.Experiment, clock: Callable[[], float], **use: Any
    ) -> None:
        self.clock = clock
        built = build(experiment, 0, "cpu")
        self.recipe = built.recipe(use)
        self.session = Session(built, self.recipe)
        timer = StepTimer(self.session.device)
        self.loop = RecipeLoop(self.session, EagerStep(self.session.step_parts(), timer), timer)

    def rate(self) -> float:
        """Samples per second of a whole epoch."""
        num_updates = self.session.feed.updates_per_epoch
        assert num_updates is not None
        with process_settings(self.recipe):
            begin = self.clock()
            return self.loop.run(num_updates) / (self.clock() - begin)


def main() -> int:
    """Measures both, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    with tempfile.TemporaryDirectory() as place:
        make_folder(Path(place), options.images * BYTES_PER_IMAGE / 1e9)
        for name, experiment in experiments(Path(place)):
            reported(name, experiment, options.rounds, clock)
    return 0


def experiments(folder: Path) -> Iterator[tuple[str, flatout.Experiment]]:
    """What is read, with a model that takes little time."""
    plain = decoded_pictures.experiment()
    yield "packed", replace(plain, train_data=Packed)
    photos: Callable[[], Any] = lambda: data.image_folder(folder)  # noqa: E731
    yield (
        "photos",
        replace(
            plain,
            model=lambda: nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(588, 8)),
            train_data=photos,
            batch_size=64,
            loss=lambda model, batch: decoded_pictures.loss(
                model, (data.normalized(batch[0]), batch[1] % 8)
            ),
        ),
    )


def reported(
    name: str, experiment: flatout.Experiment, rounds: int, clock: Callable[[], float]
) -> None:
    """Measures one experiment and prints its rows."""
    # The time of other processes is not that of this one.
    tried = (0,) if clock is time.process_time else (0, 1, 2)
    rates = {workers: loader_rate(experiment, workers, clock) for workers in tried}
    best = max(rates, key=lambda workers: rates[workers])
    use = {"loader_workers": best} | ({"num_threads": 1} if len(tried) == 1 else {})
    cached = Epochs(experiment, clock, data_path="cached", **use)
    loader = Epochs(experiment, clock, data_path="loader", **use)
    first = cached.rate() / loader.rate()
    pairs = [(cached.rate(), loader.rate()) for _ in range(rounds)]
    ratios = sorted(one / other for one, other in pairs)
    for epochs in (cached, loader):
        epochs.loop.close()
    size = bytes_text(cached.session.feed.num_bytes)  # type: ignore[attr-defined]
    found = ", ".join(f"{workers} workers {rate:.0f}" for workers, rate in rates.items())
    print(f"{name:8} loader, samples/s: {found}")
    print(
        f"{name:8} cache of {size} / loader with {best} workers: first epoch {first:.2f}, then "
        f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]",
        flush=True,
    )


def loader_rate(experiment: flatout.Experiment, workers: int, clock: Callable[[], float]) -> float:
    """The faster of two epochs."""
    epochs = Epochs(experiment, clock, data_path="loader", loader_workers=workers)
    rate = max(epochs.rate(), epochs.rate())
    epochs.loop.close()
    return rate


if __name__ == "__main__":
    sys.exit(main())
