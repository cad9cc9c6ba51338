"""An image file as a sample: cropped, resized, upright, as bytes."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import Tensor

from flatout.errors import UsageError

# Largest aspect ratio of a random crop.
# Source: Szegedy et al., Going deeper with convolutions, section 6.
_MOST_STRETCH = 4 / 3
_CROP_TRIES = 10

# Exif orientation, and the operation that makes the image upright. Source: Exif 2.32, tag 274.
_ORIENTATION = 274
_UPRIGHT = {
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE",
    6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90",
}  # fmt: skip

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Cut:
    """The rules that turn an image into a sample: see `image_folder`."""

    size: int
    random_crop: float | None
    flip: bool

    def check(self) -> None:
        """Refuses invalid values.

        Raises:
            UsageError: bad-data-option.
        """
        size: Any = self.size
        random_crop: Any = self.random_crop
        is_size = isinstance(size, numbers.Integral) and int(size) >= 1
        is_share = isinstance(random_crop, numbers.Real) and 0 < float(random_crop) <= 1
        if not is_size or not (random_crop is None or is_share):
            raise UsageError(
                "bad-data-option",
                f"`size={size}`, `random_crop={random_crop}`: one of them is invalid.",
                fix="size must be a whole number of at least 1; random_crop a number above 0 and "
                "at most 1, or None",
            )

    def read(self, file_or_path: str | IO[bytes]) -> Tensor:
        """The sample, uint8 of shape (3, size, size); random choices use torch's generator.

        Pillow can raise nearly anything for a damaged file.
        """
        from PIL import Image

        size = self.size
        with Image.open(file_or_path) as file:
            box = self._box(*file.size)
            # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, which is faster.
            share = size / min(box[2] - box[0], box[3] - box[1])
            whole = file.size
            file.draft("RGB", (int(whole[0] * share) + 1, int(whole[1] * share) + 1))
            image: Any = file if file.mode == "RGB" else _with_bytes(file).convert("RGB")
            across, down = image.width / whole[0], image.height / whole[1]
            drawn = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            image = image.resize((size, size), Image.Resampling.BILINEAR, drawn, reducing_gap=2.0)
            orientation = file.getexif().get(_ORIENTATION, 1) if "exif" in file.info else 1
        if orientation in _UPRIGHT:
            image = image.transpose(Image.Transpose[_UPRIGHT[orientation]])
        if self.flip and torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(size, size, 3).permute(2, 0, 1).contiguous()

    def _box(self, width: int, height: int) -> Box:
        """The part of the image that becomes the sample: left, top, right, bottom in pixels."""
        if self.random_crop is not None:
            for _ in range(_CROP_TRIES):
                area, stretch, left, top = torch.rand(4, dtype=torch.float64).tolist()
                area = self.random_crop + area * (1 - self.random_crop)
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
    """Converts a 16-bit image to 8 bits; Pillow would make everything above 255 white."""
    if not image.mode.startswith("I"):
        return image
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
