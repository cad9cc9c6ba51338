"""Reading a folder of JPEG files: flatout's default recipe against a DataLoader tuned by hand.

    python benchmarks/image_folder.py [--gigabytes 0.5,3] [--images 2000] [--rounds 3]

The folder is created in a temporary place, with photo-like files of 500 x 375 pixels. Both read the
same images, two epochs of them, in shuffled batches of 64 with random crops of 224 x 224 and
random flips; no model is trained. `tuned` is a plain data set with Pillow, as users write it, with
the best setting of a grid, which is measured first: workers, prefetch, persistent workers, JPEGs
decoded smaller. `flatout` is `data.image_folder` with the recipe that flatout chooses by itself.
Timed: from built objects to the last batch, including the start of the workers. Each measurement
has a fresh process; the contestants take turns. Memory is the peak of the process and its workers
together, with shared memory counted once (PSS; RSS if the system does not report PSS).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

import flatout
from flatout.engine import data
from flatout.engine.session.session import Session, build
from flatout.schema.units import bytes_text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from image_files import make_folder
from support import dated
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
GOAL = 0.9
SIZE, SMALLEST_CROP, BATCH_SIZE, EPOCHS = 224, 0.35, 64, 2
SAMPLED_EVERY_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of the hand-tuned DataLoader."""

    workers: int
    prefetch: int = 2
    is_persistent: bool = False
    is_draft: bool = True


def grid() -> list[Setting]:
    """What a user would try: numbers of workers, then the rest with one worker per core."""
    cores = psutil.cpu_count(logical=False) or 1
    return [
        *(Setting(workers=workers) for workers in sorted({0, 1, 2, cores, 2 * cores})),
        Setting(workers=cores, prefetch=4),
        Setting(workers=cores, is_persistent=True),
        Setting(workers=cores, prefetch=4, is_persistent=True),
        Setting(workers=cores, prefetch=4, is_persistent=True, is_draft=False),
    ]


def main() -> int:
    """Creates the folders, measures, prints a table, writes the result; 1 if a goal is missed."""
    options = _options()
    if options.child:
        print(json.dumps(read_once(json.loads(options.child), options.folder, options.images)))
        return 0
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    print(
        "versions  " + " · ".join(f"{k} {v}" for k, v in dated.versions("torch", "pillow").items())
    )
    measurements: list[Measurement] = []
    details: dict[str, Any] = {"goal": GOAL}
    is_reached = True
    best: Setting | None = None
    for gigabytes in map(float, options.gigabytes.split(",")):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            num_files = make_folder(folder, gigabytes)
            print(f"\nfolder    {gigabytes:g} GB in {num_files:,} files", flush=True)
            if best is None:
                best, details["grid"] = tuned(folder, options)
            rounds = [measured(best, folder, options, number) for number in range(options.rounds)]
        found = reported(rounds, gigabytes)
        measurements += found
        is_reached = is_reached and found[-1].value >= GOAL
    path = dated.write_result("image-folder", machine, measurements, details, options.out)
    print(f"written   {path}")
    return 0 if is_reached else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", default="0.5,3", help="comma-separated sizes of the folder")
    parser.add_argument("--images", type=int, default=2000, help="images per epoch")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes per contestant")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def tuned(folder: Path, options: argparse.Namespace) -> tuple[Setting, list[Any]]:
    """The fastest setting of the grid, and the rates of all."""
    settings = grid()
    rates = [run_child(asdict(one), folder, options.images // 2)["rate"] for one in settings]
    for setting, rate in sorted(zip(settings, rates, strict=True), key=lambda pair: -pair[1])[:3]:
        print(f"grid      {rate:6.0f} images/s  {setting}", flush=True)
    best = settings[rates.index(max(rates))]
    pairs = zip(settings, rates, strict=True)
    return best, [asdict(setting) | {"images_per_s": rate} for setting, rate in pairs]


def measured(
    best: Setting, folder: Path, options: argparse.Namespace, number: int
) -> dict[str, dict[str, float]]:
    """One round: both, in alternating order."""
    contestants: list[tuple[str, Any]] = [("tuned", asdict(best)), ("flatout", None)]
    turns = contestants[:: -1 if number % 2 else 1]
    found = {name: run_child(setting, folder, options.images) for name, setting in turns}
    rates = "  ".join(f"{name} {found[name]['rate']:.0f} images/s" for name, _ in contestants)
    print(f"round {number + 1}   {rates}", file=sys.stderr, flush=True)
    return found


def run_child(setting: dict[str, Any] | None, folder: Path, images: int) -> dict[str, float]:
    """One measurement in a fresh process, whose memory is watched from here."""
    command = [sys.executable, str(Path(__file__).resolve()), "--folder", str(folder)]
    command += ["--images", str(images), "--child", json.dumps(setting)]
    peak_bytes = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            peak_bytes = max(peak_bytes, memory_bytes(child.pid))
            time.sleep(SAMPLED_EVERY_S)
        assert child.stdout is not None
        said = child.stdout.read()
    if child.returncode:
        sys.exit(f"a measurement failed: {command}")
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found | {"peak_bytes": peak_bytes}


def memory_bytes(pid: int) -> int:
    """Memory of a process and all below it."""
    total = 0
    try:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            full = one.memory_full_info()
            total += getattr(full, "pss", full.rss)
    except psutil.Error:
        return 0
    return total


def read_once(setting: dict[str, Any] | None, folder: Path, images: int) -> dict[str, float]:
    """Reads two epochs of some of the folder's images."""
    dice = random.Random(0)
    if setting is None:
        whole: Any = data.image_folder(folder, size=SIZE, random_crop=SMALLEST_CROP, flip=True)
    else:
        whole = Plain(folder, setting["is_draft"])
    part = Subset(whole, dice.sample(range(len(whole)), min(images, len(whole))))
    # Read from the disk once before the clock runs: what is compared is not the disk.
    for index in part.indices:
        with open(whole.path(index) if setting is None else whole.paths[index], "rb") as file:
            file.read()
    batches = from_flatout(part) if setting is None else from_loader(part, setting)
    num_images, began_s = 0, time.perf_counter()
    for batch, _ in batches:
        assert batch.dtype == torch.uint8 and batch.shape[1:] == (3, SIZE, SIZE)
        num_images += len(batch)
    return {"rate": num_images / (time.perf_counter() - began_s)}


def from_flatout(dataset: Any) -> Iterator[Any]:
    """The feed of a session with the recipe that flatout chooses."""
    experiment = flatout.Experiment(
        model=lambda: nn.Conv2d(3, 8, 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=lambda model, batch: model(batch[0].float()).mean(),
        train_data=lambda: dataset,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
    )
    built = build(experiment, 0, None)
    session = Session(built, built.recipe({}))
    return (update[0][0] for epoch in range(EPOCHS) for update in session.feed.updates(epoch, 0))


def from_loader(dataset: Any, setting: dict[str, Any]) -> Iterator[Any]:
    """torch's DataLoader with these settings."""
    more = {}
    if setting["workers"]:
        more = {"prefetch_factor": setting["prefetch"],
                "persistent_workers": setting["is_persistent"]}  # fmt: skip
    loader: DataLoader[Any] = DataLoader(
        dataset, BATCH_SIZE, shuffle=True, num_workers=setting["workers"],
        pin_memory=torch.cuda.is_available(), **more,
    )  # fmt: skip
    return (batch for _ in range(EPOCHS) for batch in loader)


class Plain(Dataset[tuple[Tensor, int]]):
    """A folder of classes, read as users write it."""

    def __init__(self, folder: Path, is_draft: bool) -> None:
        self.paths = sorted(str(path) for path in folder.glob("*/*.jpg"))
        names = sorted({Path(path).parent.name for path in self.paths})
        self.labels = [names.index(Path(path).parent.name) for path in self.paths]
        self.is_draft = is_draft

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import numpy
        from PIL import Image

        with Image.open(self.paths[index]) as image:
            if self.is_draft:
                image.draft("RGB", (SIZE, SIZE))
            left, top, width, height = crop(*image.size)
            part = image.convert("RGB").crop((left, top, left + width, top + height))
        part = part.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(numpy.array(part)).permute(2, 0, 1).contiguous()
        return pixels, self.labels[index]


def crop(width: int, height: int) -> tuple[int, int, int, int]:
    """A random part of the image: left, top, width, height."""
    for _ in range(10):
        area = width * height * random.uniform(SMALLEST_CROP, 1)
        ratio = (4 / 3) ** random.uniform(-1, 1)
        across, down = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if across <= width and down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            return left, top, across, down
    return 0, 0, width, height


def reported(rounds: list[dict[str, dict[str, float]]], gigabytes: float) -> list[Measurement]:
    """Prints the table of one folder; the last measurement is the ratio."""
    conditions = {"gigabytes": gigabytes, "batch_size": BATCH_SIZE, "epochs": EPOCHS}
    found = []
    for name in ("tuned", "flatout"):
        rates = tuple(turn[name]["rate"] for turn in rounds)
        peaks = tuple(turn[name]["peak_bytes"] for turn in rounds)
        found += [dated.measurement(f"{name} rate", "images/s", rates, conditions),
                  dated.measurement(f"{name} peak memory", "bytes", peaks, conditions)]  # fmt: skip
        print(f"{name:10}{statistics.median(rates):6.0f} images/s  [{min(rates):.0f}, "
              f"{max(rates):.0f}]   {bytes_text(int(max(peaks)))} of memory")  # fmt: skip
    ratios = tuple(turn["flatout"]["rate"] / turn["tuned"]["rate"] for turn in rounds)
    ratio = statistics.median(ratios)
    print(f"ratio     {ratio:.2f}  [{min(ratios):.2f}, {max(ratios):.2f}]; goal {GOAL}: "
          f"{'reached' if ratio >= GOAL else 'MISSED'}", flush=True)  # fmt: skip
    return [*found, dated.measurement("flatout/tuned rate", "1", ratios, conditions)]


if __name__ == "__main__":
    sys.exit(main())
