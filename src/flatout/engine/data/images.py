"""A folder with a subfolder of images for each class, read sample by sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from flatout.engine.data.pictures import Cut
from flatout.errors import RunFailed, UsageError
from flatout.schema.units import counted_text
from flatout.system.source_path import existing, is_hidden, library, no_class_folders

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")

# Per-channel mean and standard deviation of ImageNet's training images, in 0..1.
# Source: torchvision's documentation of its classification weights.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


def image_folder(
    path: str | Path,
    *,
    size: int = 224,
    random_crop: float | None = None,
    flip: bool = False,
    classes: Sequence[str] | None = None,
) -> ImageFolder:
    """JPEG, PNG and WebP files, each in the folder of its class.

    Args:
        path: a folder with a subfolder for each class, which may have subfolders too.
        size: height and width of the samples in pixels.
        random_crop: smallest share of the image's area that a random crop keeps, such as 0.35; None
            takes the center of the image.
        flip: mirrors each image with probability 0.5.
        classes: folder names in the order of their class numbers; by default all, sorted. For
            validation data in a separate folder, pass the training data's classes.

    Returns:
        A map-style dataset of (image, class): uint8 of shape (3, size, size), and a number.

    Raises:
        UsageError: data-path-not-found, no-images, empty-class, bad-data-option,
            data-package-not-installed.
    """
    cut = Cut(size, random_crop, flip)
    cut.check()
    _check_classes(classes)
    library("PIL.Image", package="Pillow")
    return ImageFolder(existing(path), cut, classes)


def _check_classes(classes: Any) -> None:
    # A string is a sequence of strings too.
    is_sequence = isinstance(classes, Sequence) and not isinstance(classes, str)
    if classes is not None and not (is_sequence and all(isinstance(name, str) for name in classes)):
        raise UsageError(
            "bad-data-option",
            f"`classes={classes!r}` is not a list of names.",
            fix="give a list of folder names: classes=['cat', 'dog']",
        )


def normalized(
    images: Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    deviation: Sequence[float] = IMAGENET_DEVIATION,
) -> Tensor:
    """Byte images (batch, channels, height, width) as fp32, normalized by channel.

    Call it in `loss` and `metrics`, so that bytes are copied to the device: a quarter of fp32.

    Args:
        images: uint8, on any device.
        mean: of each channel, in 0..1; by default ImageNet's.
        deviation: standard deviation of each channel, in 0..1; by default ImageNet's.
    """
    scale = _per_channel([1 / (255 * scale) for scale in deviation], images.device)
    shift = _per_channel(
        [-middle / scale for middle, scale in zip(mean, deviation, strict=True)], images.device
    )
    return torch.addcmul(shift, images.float(), scale)


def _per_channel(values: Sequence[float], device: torch.device) -> Tensor:
    """Numbers (channels, 1, 1) on a device; filled in there, as a copy would wait for a GPU."""
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images by index; random crops and flips use torch's generator.

    classes: names of the classes, in the order of their numbers.
    """

    def __init__(self, folder: Path, cut: Cut, classes: Sequence[str] | None) -> None:
        self.classes = _class_names(folder, classes)
        self._folder = str(folder)
        self._cut = cut
        names: list[bytes] = []
        numbers = []
        for number, name in enumerate(self.classes):
            paths = _images_below(folder, name)
            if not paths:
                raise UsageError(
                    "empty-class",
                    f"the class `{name}` has no images: {folder / name}.",
                    because=f"image files end in {', '.join(ENDINGS)}",
                    fix="add images, or remove the folder",
                )
            names += paths
            numbers += [number] * len(paths)
        # One piece of memory that loader workers share: touching a list of strings would copy it.
        self._names = b"".join(names)
        self._ends = torch.tensor([len(name) for name in names]).cumsum(0)
        self._numbers = torch.tensor(numbers)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.path(index)
        try:
            return self._cut.read(path), int(self._numbers[index])
        except Exception as error:
            # Pillow can raise nearly anything for a damaged file.
            raise RunFailed(
                "image-not-readable",
                f"{path} is not an intact image.",
                because=str(error) or type(error).__name__,
                fix="replace it with an intact copy and resume, or remove it and start a new run",
            ) from error

    def path(self, index: int) -> str:
        """The path of the image with that index."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: {counted_text(len(self), 'image')}")
        index %= len(self)
        begin = int(self._ends[index - 1]) if index else 0
        name = os.fsdecode(self._names[begin : int(self._ends[index])])
        return os.path.join(self._folder, name)


def _class_names(folder: Path, requested: Sequence[str] | None) -> tuple[str, ...]:
    if not folder.is_dir():
        raise UsageError(
            "no-images",
            f"{folder} is not a folder.",
            fix="give the folder that has a subfolder for each class",
        )
    with os.scandir(folder) as items:
        folders = sorted(item.name for item in items if item.is_dir() and not is_hidden(item.name))
    if not folders:
        raise no_class_folders(folder)
    if requested is None:
        return tuple(folders)
    others = [name for name in folders if name not in requested]
    if others or len(set(requested)) < len(requested):
        raise UsageError(
            "empty-class",
            f"{folder} has folders that are not among `classes`: {', '.join(others)}."
            if others
            else "`classes` names a class twice.",
            fix="list all of its folders in `classes`",
        )
    return tuple(requested)


def _images_below(folder: Path, name: str) -> list[bytes]:
    """Paths of a class's images relative to the folder, always in the same order."""
    paths = []
    for parent, inner, files in os.walk(folder / name):
        inner[:] = sorted(directory for directory in inner if not is_hidden(directory))
        seen = os.path.relpath(parent, folder)
        paths += [
            os.fsencode(os.path.join(seen, file))
            for file in sorted(files)
            if file.lower().endswith(ENDINGS) and not is_hidden(file)
        ]
    return paths
