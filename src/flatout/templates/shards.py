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


def samples(is_training: bool) -> Any:
    """Images to train on, cropped and mirrored by chance; others to validate."""
    crop = 0.35 if is_training else None
    part = "train" if is_training else "$held_out"
    found = data.shards(SHARDS)
    return found.images(part, size=SIDE, random_crop=crop, flip=is_training)
''',
    words={"classes": "list(data.shards(SHARDS).classes)", "num_classes": "len(classes)"},
)

_IDX = Piece(
    imports=(*_IMPORTS, "from torch import Tensor"),
    text='''
# Made by `flatout ingest`.
SHARDS = $path


def samples(is_training: bool) -> tuple[Tensor, Tensor]:
    """Images (images, 1, height, width) from 0 to 1, and their labels."""
    part = "train" if is_training else "$held_out"
    images, labels = data.shards(SHARDS).tensors(part).tensors
    return images.float() / 255, labels
''',
    words={
        "classes": "list(data.shards(SHARDS).classes)",
        "num_classes": "len(data.shards(SHARDS).classes)",
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
    each = [found.table(one, target=TARGET).vocabularies for one in PARTS]
    words = {name: sorted({*each[0][name], *each[1][name]}) for name in each[0]}
    return found.table(part, target=TARGET, vocabularies=words)


def samples(is_training: bool) -> Any:
    """Rows to train on, or others to validate."""
    return table(PARTS[0 if is_training else 1])


def shape() -> tuple[int, list[int]]:
    """Columns of numbers, and the number of values of each column of texts."""
    rows = samples(is_training=True)
    return len(rows.numbers), [len(rows.vocabularies[name]) for name in rows.categories]


def targets() -> Tensor:
    """The target of every row to train on; classes are numbers from 0 on."""
    found: Tensor = samples(is_training=True).tensors[-1]
    return found
''',
    words={
        "columns": "*shape()",
        "targets": "targets()",
        "classes": "samples(is_training=True).vocabularies.get(TARGET)",
        "num_classes": "num_classes()",
    },
)

_TEXT = Piece(
    imports=_IMPORTS,
    text='''
# Made by `flatout ingest`.
SHARDS = $path


def samples(is_training: bool, context: int) -> Any:
    """Windows of bytes of the passages to train on, or of others to validate."""
    part = "train" if is_training else "$held_out"
    return data.shards(SHARDS).text(part, context=context)
''',
)

_NUM_CLASSES = '''

def num_classes() -> int:
    """Of both parts."""
    return max(int(table(part).tensors[-1].max()) for part in PARTS) + 1
'''


def shards(sketch: Sketch) -> Piece:
    """How shards are read, by what they were made of."""
    pieces = {"images": _IMAGES, "tensors": _IDX, "text": _TEXT, "csv": _TABLE, "parquet": _TABLE}
    found = pieces[sketch.content]
    text = found.text.replace("$held_out", sketch.held_out)
    if found is _TABLE and sketch.task == "classification":
        text += _NUM_CLASSES
    return Piece(imports=found.imports, text=text, words=found.words)
