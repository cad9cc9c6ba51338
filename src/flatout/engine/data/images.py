"""A folder of images with a folder for each class, read sample by sample."""

from __future__ import annotations

import numbers
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from flatout.engine.data.files import existing, is_hidden, library
from flatout.errors import RunFailed, UsageError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")

# Mean and deviation of ImageNet's training images, for each channel, in 0..1.
# Source: torchvision's documentation of its classification weights.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

# A random crop may be wider or higher than it is high or wide by this.
# Source: Szegedy et al., Going deeper with convolutions, section 6.
_MOST_STRETCH = 4 / 3
_CROP_TRIES = 10

# How a camera was held, and what makes its image upright. Source: Exif 2.32, tag 274.
_ORIENTATION = 274
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
    6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip

Box = tuple[float, float, float, float]


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
        path: a folder with a folder for each class; images may lie deeper below it.
        size: height and width of the samples in pixels.
        random_crop: smallest share of the image's area that a random crop keeps, such as 0.35; None
            takes the middle of the image.
        flip: mirrors every other image, by chance.
        classes: names of the folders in the order of their numbers; by default all, sorted. Give
            the training data's for validation data in a folder of its own.

    Returns:
        A map-style dataset of (image, class): uint8 of shape (3, size, size), and a number.

    Raises:
        UsageError: data-path-not-found, no-images, empty-class, bad-data-option,
            data-package-not-installed.
    """
    _check_options(size, random_crop, classes)
    library("PIL.Image", package="Pillow")
    return ImageFolder(existing(path), size, random_crop, flip, classes)


def _check_options(size: Any, random_crop: Any, classes: Any) -> None:
    is_size = isinstance(size, numbers.Integral) and int(size) >= 1
    is_share = isinstance(random_crop, numbers.Real) and 0 < float(random_crop) <= 1
    if not is_size or not (random_crop is None or is_share):
        raise UsageError(
            "bad-data-option",
            f"`size={size}`, `random_crop={random_crop}`: one of them cannot be.",
            fix="size must be a whole number of at least 1; random_crop a number above 0 and at "
            "most 1, or None",
        )
    # A text is a sequence of texts, too: of its letters.
    is_sequence = isinstance(classes, Sequence) and not isinstance(classes, str)
    if classes is not None and not (is_sequence and all(isinstance(one, str) for one in classes)):
        raise UsageError(
            "bad-data-option",
            f"`classes={classes!r}` is not a list of names.",
            fix="give the names of the folders: classes=['cat', 'dog']",
        )


def normalized(
    images: Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    deviation: Sequence[float] = IMAGENET_DEVIATION,
) -> Tensor:
    """Images (batch, channels, height, width) of bytes as fp32, normalised by channel.

    Called in `loss` and `metrics`, so that bytes are what travels to the device, a fourth of fp32.

    Args:
        images: uint8, on any device.
        mean: of each channel, in 0..1; by default ImageNet's.
        deviation: standard deviation of each channel, in 0..1; by default ImageNet's.
    """
    scale, shift = (
        torch.tensor(values, device=images.device).view(-1, 1, 1)
        for values in (
            [1 / (255 * one) for one in deviation],
            [-middle / one for middle, one in zip(mean, deviation, strict=True)],
        )
    )
    return torch.addcmul(shift, images.float(), scale)


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Images by index; what is random about them is drawn from torch's generator.

    classes: names of the classes, in the order of their numbers.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        random_crop: float | None,
        flip: bool,
        classes: Sequence[str] | None,
    ) -> None:
        self.classes = _class_names(folder, classes)
        self._folder = str(folder)
        self._size = size
        self._random_crop = random_crop
        self._flip = flip
        names: list[bytes] = []
        numbers = []
        for number, name in enumerate(self.classes):
            found = _images_below(folder, name)
            if not found:
                raise UsageError(
                    "empty-class",
                    f"there is no image of the class `{name}` in {folder / name}.",
                    because=f"an image's name ends in {', '.join(ENDINGS)}",
                    fix="put images there, or remove the folder",
                )
            names += found
            numbers += [number] * len(found)
        # One piece of memory: loader workers share it, where touching a list of texts copies it.
        self._names = b"".join(names)
        self._ends = torch.tensor([len(name) for name in names]).cumsum(0)
        self._numbers = torch.tensor(numbers)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path = self.path(index)
        try:
            return self._read(path), int(self._numbers[index])
        except Exception as error:
            # A damaged file makes Pillow raise nearly anything.
            raise RunFailed(
                "image-not-readable",
                f"{path} is not a whole image.",
                because=str(error) or type(error).__name__,
                fix="replace it by a whole one and resume; or remove it and begin a new run",
            ) from error

    def path(self, index: int) -> str:
        """Where the image of that index lies."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} images, none has the index {index}")
        index %= len(self)
        begin = int(self._ends[index - 1]) if index else 0
        name = os.fsdecode(self._names[begin : int(self._ends[index])])
        return os.path.join(self._folder, name)

    def _read(self, path: str) -> Tensor:
        from PIL import Image

        size = self._size
        with Image.open(path) as file:
            box = self._box(*file.size)
            # A JPEG can be decoded at a half, a fourth or an eighth of its size, in less time.
            share = size / min(box[2] - box[0], box[3] - box[1])
            whole = file.size
            file.draft("RGB", (int(whole[0] * share) + 1, int(whole[1] * share) + 1))
            image: Any = file if file.mode == "RGB" else _with_bytes(file).convert("RGB")
            across, down = image.width / whole[0], image.height / whole[1]
            drawn = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            image = image.resize((size, size), Image.Resampling.BILINEAR, drawn, reducing_gap=2.0)
            held = file.getexif().get(_ORIENTATION, 1) if "exif" in file.info else 1
        if held in _UPRIGHT:
            image = image.transpose(Image.Transpose[_UPRIGHT[held]])
        if self._flip and torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(size, size, 3).permute(2, 0, 1).contiguous()

    def _box(self, width: int, height: int) -> Box:
        """The part of the image that becomes the sample: left, top, right, bottom in pixels."""
        if self._random_crop is not None:
            for _ in range(_CROP_TRIES):
                area, stretch, left, top = torch.rand(4, dtype=torch.float64).tolist()
                area = self._random_crop + area * (1 - self._random_crop)
                ratio = _MOST_STRETCH ** (2 * stretch - 1)
                across = (area * width * height * ratio) ** 0.5
                down = across / ratio
                if across <= width and down <= height:
                    left, top = left * (width - across), top * (height - down)
                    return left, top, left + across, top + down
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return left, top, left + side, top + side


def _with_bytes(image: Any) -> Any:
    """An image of 16 bits as one of 8; Pillow would make everything above 255 white."""
    if not image.mode.startswith("I"):
        return image
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")


def _class_names(folder: Path, wanted: Sequence[str] | None) -> tuple[str, ...]:
    if not folder.is_dir():
        raise UsageError(
            "no-images",
            f"{folder} is not a folder.",
            fix="give the folder that holds a folder for each class",
        )
    with os.scandir(folder) as items:
        found = sorted(item.name for item in items if item.is_dir() and not is_hidden(item.name))
    if not found:
        raise UsageError(
            "no-images",
            f"there is no folder of a class in {folder}.",
            because="an image's class is the name of the folder it lies in",
            fix="move the images into folders with the names of their classes",
        )
    if wanted is None:
        return tuple(found)
    others = [name for name in found if name not in wanted]
    if others or len(set(wanted)) < len(wanted):
        raise UsageError(
            "empty-class",
            f"{folder} has folders that are not among `classes`: {', '.join(others)}."
            if others
            else "`classes` names a class twice.",
            fix="give `classes` the names of all its folders",
        )
    return tuple(wanted)


def _images_below(folder: Path, name: str) -> list[bytes]:
    """Names of a class's images as seen from the folder, in an order that is always the same."""
    found = []
    for place, inner, files in os.walk(folder / name):
        inner[:] = sorted(one for one in inner if not is_hidden(one))
        seen = os.path.relpath(place, folder)
        found += [
            os.fsencode(os.path.join(seen, file))
            for file in sorted(files)
            if file.lower().endswith(ENDINGS) and not is_hidden(file)
        ]
    return found
