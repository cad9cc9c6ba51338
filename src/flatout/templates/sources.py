"""Where the samples come from: a person's own files, or made up until there are some."""

from __future__ import annotations

from flatout.nouns.sketch import Sketch
from flatout.templates.piece import Piece
from flatout.templates.shards import PROMPTS, shards

_TORCH = ("import torch", "from torch import Tensor")


def source(sketch: Sketch) -> Piece:
    """How the data of a sketch is read.

    The pieces define `samples(is_training)`, and fill in `$num_classes`, which may call it, and
    `$classes`, what the classes are called.
    """
    if sketch.data == "shards" and not sketch.is_made_up:
        return shards(sketch)
    if sketch.data in ("csv", "parquet"):
        return _table(sketch)
    if sketch.data == "huggingface":
        return _huggingface(sketch)
    if sketch.task == "language-model":
        return _text(sketch)
    if sketch.data == "images":
        return _images(sketch)
    return _tensors(sketch)


def _images(sketch: Sketch) -> Piece:
    if sketch.is_made_up:
        return Piece(
            imports=(*_TORCH, "from flatout.engine import data"),
            text='''
SIDE = 32
CLASSES = ("rows", "columns")


def samples(is_training: bool) -> tuple[Tensor, Tensor]:
    """Synthetic stripes in noise. For your own images, in one folder per class:

    folder = data.image_folder("photos", size=SIDE, flip=is_training)
    return data.split(folder)[0 if is_training else 1]
    """
    dice = torch.Generator().manual_seed(1 if is_training else 2)
    labels = torch.randint(2, (400,), generator=dice)
    noise = torch.randint(160, (400, 3, SIDE, SIDE), generator=dice)
    stripes = (torch.arange(SIDE) % 8 < 4) * 90
    columns = stripes.expand(SIDE, SIDE)
    shown = torch.stack([columns.T, columns])[labels].unsqueeze(1)
    return (noise + shown).to(torch.uint8), labels


def predict_data(path: str) -> Tensor:
    """What `flatout predict` reads: an image file of any size and mode."""
    return data.image(path, size=SIDE)
''',
            words={"classes": "CLASSES", "num_classes": "len(CLASSES)"},
        )
    return Piece(
        imports=("from pathlib import Path", "from typing import Any",
                 "from flatout.engine import data"),
        text='''
# A folder with a folder of images for each class.
IMAGES = $path
SIDE = 64


@data.fitted
def names() -> list[str]:
    """Of the classes. Kept with the run: predicting needs no training images."""
    return list(data.image_folder(IMAGES).classes)


def samples(is_training: bool) -> Any:
    """Nine tenths to train on, cropped and mirrored by chance; a tenth to validate."""
    chance = {"random_crop": 0.35, "flip": True} if is_training else {}
    folder = data.image_folder(IMAGES, size=SIDE, classes=names(), **chance)
    # The split is the same whenever it is made.
    return data.split(folder)[0 if is_training else 1]


def predict_data(path: str) -> Any:
    """What `flatout predict` reads: an image file of any size and mode."""
    return data.image(path, size=SIDE)
''',
        words={"classes": "names()", "num_classes": "len(classes)"},
    )  # fmt: skip


def _made_up_table(sketch: Sketch) -> Piece:
    is_sum = sketch.task == "regression"
    target = "numbers.prod(1) + 3" if is_sum else "(numbers.norm(dim=1) > 2).long()"
    return Piece(
        imports=(*_TORCH, "from flatout.engine import data"),
        text=f'''
def samples(is_training: bool) -> tuple[Tensor, Tensor]:
    """Four synthetic columns and a target. For your own table:

    flatout new NAME --path table.{sketch.data} --target COLUMN
    """
    dice = torch.Generator().manual_seed(1 if is_training else 2)
    numbers = torch.randn(1000, 4, generator=dice)
    return numbers, {target}


def predict_data(path: str) -> Tensor:
    """What `flatout predict` reads: .npy, .safetensors, or a table of numbers."""
    return data.tensors(path, like=samples(is_training=False)[0])
''',
        words={
            "columns": "4, []",
            "targets": "samples(is_training=True)[-1]",
            "classes": '["inside", "outside"]',
            "num_classes": "2",
        },
    )


def _table(sketch: Sketch) -> Piece:
    if sketch.is_made_up:
        return _made_up_table(sketch)
    # Classes have names, also where these are numbers.
    categories = ", vocabularies={TARGET: None}" if sketch.task == "classification" else ""
    return Piece(
        imports=("from functools import cache", "from pathlib import Path",
                 "from typing import Any", "from torch import Tensor",
                 "from flatout.engine import data"),
        text=f'''
TABLE = $path
TARGET = $target


@cache
def table() -> Any:
    """The rows: columns of numbers, columns of texts as codes, and the target."""
    return data.{sketch.data}(TABLE, target=TARGET{categories})


@data.fitted
def columns() -> data.Columns:
    """Names and categories. Kept with the run: predicting needs no table."""
    return table().columns


def samples(is_training: bool) -> Any:
    """Nine tenths of the rows to train on, the rest to validate on; always these."""
    return data.split(table().like(columns()))[0 if is_training else 1]


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
            "targets": "table().tensors[-1]",
            "classes": "columns().vocabularies[TARGET]",
            "num_classes": "len(columns().vocabularies[TARGET])",
            "answer": "TARGET",
        },
    )  # fmt: skip


def _tensors(sketch: Sketch) -> Piece:
    if sketch.is_made_up:
        is_sum = sketch.task == "regression"
        target = "inputs.prod(1) + 3" if is_sum else "(inputs.norm(dim=1) > 2).long()"
        return Piece(
            imports=(*_TORCH, "from flatout.engine import data"),
            text=f'''
def samples(is_training: bool) -> tuple[Tensor, Tensor]:
    """Synthetic points and their targets. Return your own tensors."""
    dice = torch.Generator().manual_seed(1 if is_training else 2)
    inputs = torch.randn(1000, 4, generator=dice)
    return inputs, {target}


def predict_data(path: str) -> Tensor:
    """What `flatout predict` reads: .npy, .safetensors, or a table of numbers."""
    return data.tensors(path, like=samples(is_training=False)[0])
''',
            words={
                "targets": "samples(is_training=True)[-1]",
                "classes": '["inside", "outside"]',
                "num_classes": "2",
                "num_inputs": "samples(is_training=False)[0][0].numel()",
            },
        )
    return Piece(
        imports=("from pathlib import Path", "from safetensors.torch import load_file",
                 "from torch import Tensor", "from flatout.engine import data"),
        text='''
# Holds `inputs` and `targets`, with the same number of samples.
TENSORS = $path


def samples(is_training: bool) -> tuple[Tensor, Tensor]:
    """Nine tenths to train on, the rest to validate on; always the same ones."""
    tensors = load_file(TENSORS)
    whole = tensors["inputs"], tensors["targets"]
    inputs, targets = data.split(whole)[0 if is_training else 1]
    return inputs, targets


@data.fitted
def example() -> Tensor:
    """A sample, for its shape. Kept with the run: predicting needs no data."""
    return samples(is_training=False)[0][:1]


def predict_data(path: str) -> Tensor:
    """What `flatout predict` reads: .npy, or `inputs` of a .safetensors file."""
    return data.tensors(path, like=example())
''' + (_NUM_CLASSES if sketch.task == "classification" else ""),
        words={
            "targets": "samples(is_training=True)[-1]",
            "classes": "[str(number) for number in range(num_classes())]",
            "num_classes": "num_classes()",
            "num_inputs": "example().numel()",
        },
    )  # fmt: skip


_NUM_CLASSES = '''

@data.fitted
def num_classes() -> int:
    """Classes are numbers from 0 on."""
    return int(load_file(TENSORS)["targets"].max()) + 1
'''


def _text(sketch: Sketch) -> Piece:
    if sketch.is_made_up:
        return Piece(
            imports=(*_TORCH, "from flatout.engine import data"),
            text='''
def samples(is_training: bool, context: int) -> Tensor:
    """Synthetic sums as text. For your own text:

    whole = data.text("book.txt", context=context)
    return data.split(whole)[0 if is_training else 1]
    """
    first = 0 if is_training else 3000
    sums = "".join(f"{n} and {n} is {2 * n}. " for n in range(first, first + 3000))
    # One more than the context: the last byte is only predicted.
    return torch.tensor(list(sums.encode())).unfold(0, context + 1, context)
'''
            + PROMPTS,
        )
    return Piece(
        imports=("from pathlib import Path", "from typing import Any", "from torch import Tensor",
                 "from flatout.engine import data"),
        text='''
TEXT = $path


def samples(is_training: bool, context: int) -> Any:
    """Windows of bytes of the first nine tenths of the text, or of the rest."""
    whole = data.text(TEXT, context=context)
    return data.split(whole)[0 if is_training else 1]
''' + PROMPTS,
    )  # fmt: skip


_HF_TEXTS = '''

def predict_data(text: str) -> Tensor:
    """What `flatout predict` reads: a text, or the file that holds one."""
    return data.text_bytes(text, longest=LONGEST).long()
'''

_HF_CLASSES = '''
@data.fitted
def classes() -> list[str]:
    """The names of the labels, or else their numbers, from 0 on; kept with the run."""
    label = samples(is_training=True).features["label"]
    names = getattr(label, "names", None)
    return names or [str(number) for number in range(int(targets().max()) + 1)]

'''

_HF_TASKS = {
    "classification": '''
def collate(found: list[Any]) -> tuple[Tensor, Tensor]:
    """A batch: bytes, padded with zeros, and labels. Your tokenizer goes here."""
    texts = [torch.tensor(list(one["text"].encode()[:LONGEST])) for one in found]
    labels = torch.tensor([one["label"] for one in found])
    return pad_sequence(texts, batch_first=True), labels
''',
    "language-model": '''
def collate(found: list[Any], context: int) -> Tensor:
    """A batch of bytes, cut or padded with zeros. Your tokenizer goes here."""
    texts = [torch.tensor(list(one["text"].encode()[: context + 1])) for one in found]
    return pad_sequence(texts, batch_first=True)
''',
}


_HF_TARGETS = '''
def targets() -> Tensor:
    """What is to be predicted of the training samples."""
    return torch.tensor([one["label"] for one in samples(is_training=True)])

'''


def _huggingface(sketch: Sketch) -> Piece:
    is_language = sketch.task == "language-model"
    collate = _HF_TASKS["language-model" if is_language else "classification"]
    longest = "" if is_language else "# Bytes that the model sees of a text.\nLONGEST = 200\n"
    words = {"classes": "classes()", "num_classes": "len(classes())", "targets": "targets()"}
    targets = ""
    if sketch.task == "regression" or not (is_language or sketch.is_made_up):
        targets = _HF_TARGETS
    if sketch.task == "classification" and not sketch.is_made_up:
        targets += _HF_CLASSES
    collate += PROMPTS if is_language else _HF_TEXTS
    imports = (
        *_TORCH,
        "from flatout.engine import data",
        "from torch.nn.utils.rnn import pad_sequence",
        "from typing import Any",
        *(["from functools import partial"] if is_language else []),
    )
    if sketch.is_made_up:
        label = {"classification": "n % 2", "regression": "n / 100", "language-model": "0"}
        return Piece(
            imports=imports,
            text=f'''
{longest}

def samples(is_training: bool) -> Any:
    """Synthetic texts with labels. For a Hugging Face data set:

    import datasets
    return datasets.load_from_disk("reviews")["train" if is_training else "test"]
    """
    numbers = range(900) if is_training else range(900, 1000)
    return [{{"text": f"number {{n}}", "label": {label[sketch.task]}}} for n in numbers]

{targets}{collate}''',
            words=words | {"num_classes": "2", "classes": '["even", "odd"]'},
        )
    return Piece(
        imports=(*imports, "import datasets", "from pathlib import Path"),
        text=f'''
# As `save_to_disk` wrote it, with the columns {"`text`" if is_language else "`text` and `label`"}.
FOLDER = $path
{longest}

def samples(is_training: bool) -> Any:
    """The parts `train` and `test`; a data set without parts is split."""
    found = datasets.load_from_disk(FOLDER)
    if isinstance(found, datasets.Dataset):
        found = found.train_test_split(0.1, seed=0)
    return found["train" if is_training else "test"]

{targets}{collate}''',
        words=words,
    )
