"""Where the samples come from, when `flatout ingest` has made shards of them."""

from __future__ import annotations

from flatout.nouns.sketch import Sketch
from flatout.templates.piece import Piece

_IMPORTS = ("from pathlib import Path", "from typing import Any", "from flatout.engine import data")

_IMAGES = Piece(
    imports=_IMPORTS,
    text='''
# Made by `flatout ingest`.
SHARDS = $path
SIDE = 64


@data.fitted
def names() -> list[str]:
    """Of the classes. Kept with the run: predicting needs no shards."""
    return list(data.shards(SHARDS).classes)


def samples(is_training: bool) -> Any:
    """Images to train on, cropped and mirrored by chance; others to validate."""
    crop = 0.35 if is_training else None
    part = "train" if is_training else "$held_out"
    found = data.shards(SHARDS)
    return found.images(part, size=SIDE, random_crop=crop, flip=is_training)


def predict_data(path: str) -> Any:
    """What `flatout predict` reads: an image file of any size and mode."""
    return data.image(path, size=SIDE)
''',
    words={"classes": "names()", "num_classes": "len(classes)"},
)

_IDX = Piece(
    imports=(*_IMPORTS, "import math", "from torch import Tensor"),
    text='''
# Made by `flatout ingest`.
SHARDS = $path


def samples(is_training: bool) -> tuple[Tensor, Tensor]:
    """Images (images, 1, height, width) from 0 to 1, and their labels."""
    part = "train" if is_training else "$held_out"
    images, labels = data.shards(SHARDS).tensors(part).tensors
    return images.float() / 255, labels


@data.fitted
def names() -> list[str]:
    """Of the classes. Kept with the run: predicting needs no shards."""
    return list(data.shards(SHARDS).classes)


@data.fitted
def shape() -> tuple[int, int, int]:
    """Channels, height and width."""
    channels, height, width = data.shards(SHARDS).manifest.settings.shape
    return channels, height, width


def predict_data(path: str) -> Tensor:
    """What `flatout predict` reads: an image file, dark and light as in training."""
    channels, height, width = shape()
    image = data.image(path, size=(height, width), grey=channels == 1)
    return image.float() / 255
''',
    words={
        "classes": "names()",
        "num_classes": "len(names())",
        "num_inputs": "math.prod(shape())",
    },
)

_TABLE = Piece(
    imports=(*_IMPORTS, "from functools import cache", "from torch import Tensor"),
    text='''
# Made by `flatout ingest`.
SHARDS = $path
TARGET = $target
PARTS = ("train", "$held_out")


@cache
def table(part: str) -> Any:
    """The rows: columns of numbers, columns of texts as codes, and the target."""
    found = data.shards(SHARDS)
    # A value may be in one part alone; its code is to be the same in both.
    each = $each
    words = {name: sorted({*each[0][name], *each[1][name]}) for name in each[0]}
    return found.table(part, target=TARGET, vocabularies=words)


@data.fitted
def columns() -> data.Columns:
    """Names and categories. Kept with the run: predicting needs no shards."""
    return table(PARTS[0]).columns


def samples(is_training: bool) -> Any:
    """Rows to train on, or others to validate."""
    return table(PARTS[0 if is_training else 1]).like(columns())


def shape() -> tuple[int, list[int]]:
    """Columns of numbers, and the number of values of each column of texts."""
    sizes = [len(columns().vocabularies[name]) for name in columns().categories]
    return len(columns().numbers), sizes


def predict_data(path: str) -> tuple[Tensor, ...]:
    """What `flatout predict` reads: rows with these columns, in any order."""
    return data.rows(path, like=columns())
''',
    words={
        "columns": "*shape()",
        "targets": "samples(is_training=True).tensors[-1]",
        "classes": "classes()",
        "num_classes": "len(classes())",
        "answer": "TARGET",
    },
)

PROMPTS = '''

def predict_data(text: str) -> Tensor:
    """What `flatout predict` reads: a text to continue, or its file."""
    return data.text_bytes(text)
'''

_TEXT = Piece(
    imports=(*_IMPORTS, "from torch import Tensor"),
    text='''
# Made by `flatout ingest`.
SHARDS = $path


def samples(is_training: bool, context: int) -> Any:
    """Windows of bytes of the passages to train on, or of others to validate."""
    part = "train" if is_training else "$held_out"
    return data.shards(SHARDS).text(part, context=context)
'''
    + PROMPTS,
)

_VALUES_OF_EACH = "[found.table(one, target=TARGET).vocabularies for one in PARTS]"
# Classes have names, also where these are numbers.
_CLASSES_OF_EACH = """[
        found.table(one, target=TARGET, vocabularies={TARGET: None}).vocabularies
        for one in PARTS
    ]"""

_CLASSES = '''

def classes() -> list[str]:
    """The values of the target in both parts."""
    return list(columns().vocabularies[TARGET])
'''


def shards(sketch: Sketch) -> Piece:
    """How shards are read, by what they were made of."""
    pieces = {"images": _IMAGES, "tensors": _IDX, "text": _TEXT, "csv": _TABLE, "parquet": _TABLE}
    found = pieces[sketch.content]
    text = found.text.replace("$held_out", sketch.held_out)
    is_classified = found is _TABLE and sketch.task == "classification"
    text = text.replace("$each", _CLASSES_OF_EACH if is_classified else _VALUES_OF_EACH)
    text += _CLASSES if is_classified else ""
    return Piece(imports=found.imports, text=text, words=found.words)
