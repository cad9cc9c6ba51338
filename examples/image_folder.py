"""Photos in a folder for each class; without a folder of yours, some are drawn.

flatout train examples/image_folder.py -s folder=flowers -s size=224

Needs Pillow: pip install 'flatout[data]'.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import flatout
from flatout.engine import data


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(data.normalized(images)), labels)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    images, labels = batch
    scores = model(data.normalized(images))
    return {"accuracy": (scores.argmax(1) == labels).float().mean()}


def model(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, num_classes),
    )  # fmt: skip


def experiment(
    folder: str | None = None, size: int = 64, lr: float = 1e-2, epochs: int = 12
) -> flatout.Experiment:
    path = Path(folder) if folder is not None else drawn_folder()
    # The same photos are split the same way each time; only those to train on are changed.
    seen = data.image_folder(path, size=size, random_crop=0.5, flip=True)
    plain = data.image_folder(path, size=size)
    return flatout.Experiment(
        model=lambda: model(len(seen.classes)),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        loss=loss,
        metrics=metrics,
        train_data=lambda: data.split(seen, validation=0.2)[0],
        validation_data=lambda: data.split(plain, validation=0.2)[1],
        batch_size=16,
        epochs=epochs,
        best="accuracy",
        unit="images",
        labels=seen.classes,
    )


def drawn_folder() -> Path:
    """Stripes across and stripes down, 50 pictures of each, in the folder for temporary files."""
    from PIL import Image, ImageDraw

    folder = Path(tempfile.gettempdir()) / "flatout-stripes"
    dice = torch.Generator().manual_seed(0)
    for name in ("across", "down"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(50):
            colours = torch.randint(256, (2, 3), generator=dice).tolist()
            picture = Image.new("RGB", (96, 80), tuple(colours[0]))
            draw = ImageDraw.Draw(picture)
            gap = 8 + number % 8
            for place in range(number % gap, 96, gap):
                line = (0, place, 96, place) if name == "across" else (place, 0, place, 80)
                draw.line(line, tuple(colours[1]), width=4)
            path = folder / name / f"{number}.png"
            if not path.exists():
                picture.save(path)
    return folder
