"""Pictures of digits, as `flatout predict` is given them: image files, .npy or IDX files."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from flatout.system.source_path import library

_MOST_PIXELS = 50_000_000


def read_pictures(text: str, num_pixels: int) -> Tensor:
    """Pictures (pictures, 1, num_pixels, num_pixels), 0 for the background to 1 for the ink.

    An image file is one picture: it is made gray, inverted where its border is light (ink on
    paper), and brought to this size without changing its proportions. A .npy file holds pictures
    of this size as bytes or as numbers from 0 to 1; an IDX file, also gzipped, as bytes.
    """
    path = Path(text)
    if path.suffix == ".npy":
        pictures = _read_npy(path)
    elif "idx" in path.name:
        pictures = read_idx(path)
    else:
        pictures = _read_image(path, num_pixels)
    return _scaled(pictures, num_pixels)


def decode_pictures(content: Any, num_pixels: int) -> Tensor:
    """Pictures as `read_pictures` gives them, of what a client of `flatout serve` sends.

    The bytes of an image file are one picture. Nested lists are one picture or several of this
    size: numbers from 0 to 1, or from 0 to 255 if any of them is above 1.
    """
    if isinstance(content, bytes):
        return _scaled(_read_image(io.BytesIO(content), num_pixels), num_pixels)
    if not isinstance(content, list):
        raise ValueError("a picture is an image file, or its numbers in nested lists")
    import numpy

    numbers = torch.from_numpy(numpy.asarray(content, dtype="float32"))
    if numbers.numel() and numbers.max() > 1:
        numbers /= 255
    return _scaled(numbers, num_pixels)


def _scaled(pictures: Tensor, num_pixels: int) -> Tensor:
    """Pictures of any number of dimensions as a batch, from 0 to 1."""
    if pictures.dtype == torch.uint8:
        pictures = pictures.float() / 255
    if pictures.dim() == 2:
        pictures = pictures.unsqueeze(0)
    if pictures.dim() == 3:
        pictures = pictures.unsqueeze(1)
    if pictures.dim() != 4 or pictures.shape[1:] != (1, num_pixels, num_pixels):
        size = f"{num_pixels} x {num_pixels}"
        raise ValueError(f"it has numbers of shape {tuple(pictures.shape)}, not pictures of {size}")
    return pictures


def read_idx(file: Path) -> Tensor:
    """An IDX file of bytes: two zeros, 8 for uint8, the number of dimensions, each size, the data.

    Source: http://yann.lecun.com/exdb/mnist/ ("the IDX file format"), big-endian sizes.
    """
    content = bytearray(file.read_bytes())
    if content[:2] == b"\x1f\x8b":
        content = bytearray(gzip.decompress(content))
    if content[:3] != b"\x00\x00\x08":
        raise ValueError("it is not an IDX file of bytes")
    num_dimensions = content[3]
    sizes = [int.from_bytes(content[4 + 4 * d : 8 + 4 * d], "big") for d in range(num_dimensions)]
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * num_dimensions).view(sizes)


def as_images(pictures: Tensor) -> Sequence[Any]:
    """Pictures (pictures, 1, height, width) from 0 to 1 as images of Pillow's."""
    library = _pillow()
    grey = (pictures.clamp(0, 1) * 255).round().byte().cpu()
    size = (grey.shape[3], grey.shape[2])
    return [library.frombytes("L", size, bytes(image.flatten().tolist())) for image in grey]


def _read_npy(path: Path) -> Tensor:
    import numpy

    array = numpy.load(path, allow_pickle=False)
    return torch.from_numpy(array if array.dtype == numpy.uint8 else array.astype("float32"))


def _read_image(source: Path | BinaryIO, num_pixels: int) -> Tensor:
    library = _pillow()
    try:
        image = library.open(source)
    except library.UnidentifiedImageError:
        # Pillow's message contains a memory address.
        raise ValueError("it is not an image file") from None
    with image:
        # Known before it is unpacked: a small file can hold a picture that fills the memory.
        if image.width * image.height > _MOST_PIXELS:
            raise ValueError(f"it has {image.width} x {image.height} pixels")
        # What is see-through is seen on paper.
        layers = image.convert("RGBA")
        paper = library.new("RGBA", layers.size, "white")
        grey = library.alpha_composite(paper, layers).convert("L")
    pixels = torch.frombuffer(bytearray(grey.tobytes()), dtype=torch.uint8)
    pixels = pixels.view(grey.height, grey.width)
    border = torch.cat([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    if border.median() > 127:
        grey = grey.point(lambda value: 255 - value)
    scale = num_pixels / max(grey.size)
    width, height = (max(1, round(scale * side)) for side in grey.size)
    fitted = library.new("L", (num_pixels, num_pixels))
    corner = (num_pixels - width) // 2, (num_pixels - height) // 2
    fitted.paste(grey.resize((width, height), library.Resampling.BOX), corner)
    content = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8)
    return content.view(1, 1, num_pixels, num_pixels)


def _pillow() -> Any:
    return library("PIL.Image", package="Pillow")
