"""Creates the folder that image_folder.py reads: photo-like JPEG files in folders of classes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy
from PIL import Image

NUM_CLASSES = 10
# So many different ones are encoded; the files are copies that differ in a comment.
NUM_DISTINCT = 200
WIDTH, HEIGHT = 500, 375


def make_folder(folder: Path, gigabytes: float) -> int:
    """Writes that many bytes; returns the number of files."""
    dice = numpy.random.default_rng(0)
    images = [encoded_image(dice) for _ in range(NUM_DISTINCT)]
    num_bytes = number = 0
    while num_bytes < gigabytes * 1e9:
        image = images[number % NUM_DISTINCT]
        place = folder / f"class-{number % NUM_CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        comment = f"image {number}".encode()
        # After the two bytes that begin a JPEG: a comment, with its length and that of the length.
        segment = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
        (place / f"{number:07}.jpg").write_bytes(image[:2] + segment + image[2:])
        num_bytes += len(image) + len(segment)
        number += 1
    return number


def encoded_image(dice: numpy.random.Generator) -> bytes:
    """Soft shapes with grain: as large and as slow to decode as a photo."""
    pixels = numpy.zeros((HEIGHT, WIDTH, 3))
    for cells in (4, 16, 64):
        coarse = dice.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=numpy.uint8)
        soft = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        pixels += numpy.asarray(soft) / 3
    pixels += dice.normal(0, 12, pixels.shape)
    content = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8)).save(content, "JPEG", quality=90)
    return content.getvalue()
