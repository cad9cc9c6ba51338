"""Sources of samples: the user's own files, or synthetic data until there are some."""

from __future__ import annotations

from flatout.runs.model.new_experiment import NewExperiment
from flatout.runs.scaffold.piece import TemplatePiece, piece

_LONGEST = "# Bytes that the model sees of a text.\nLONGEST = 200"
_VALUES_OF_EACH = "[found.table(one, target=TARGET).vocabularies for one in PARTS]"
# Class names are texts, even if they look like numbers.
_CLASSES_OF_EACH = """[
        found.table(one, target=TARGET, vocabularies={TARGET: None}).vocabularies
        for one in PARTS
    ]"""


def source(sketch: NewExperiment) -> TemplatePiece:
    """The code that reads the data of a sketch.

    The pieces define `samples(is_training)`, and fill in `$num_classes`, which may call it, and
    `$classes`, what the classes are called.
    """
    if sketch.data == "shards" and not sketch.is_made_up:
        return _shards(sketch)
    if sketch.data in ("csv", "parquet"):
        return _table(sketch)
    if sketch.data == "huggingface":
        return _huggingface(sketch)
    if sketch.task == "language-model":
        return piece("data/text_made_up" if sketch.is_made_up else "data/text", "data/prompts")
    if sketch.data == "images":
        return _images(sketch)
    return _tensors(sketch)


def _images(sketch: NewExperiment) -> TemplatePiece:
    if sketch.is_made_up:
        return piece("data/images_made_up", classes="CLASSES", num_classes="len(CLASSES)")
    return piece("data/images", classes="names()", num_classes="len(classes)")


def _table(sketch: NewExperiment) -> TemplatePiece:
    is_sum = sketch.task == "regression"
    if sketch.is_made_up:
        return piece(
            "data/table_made_up",
            kind=sketch.data,
            made_up_targets="numbers.prod(1) + 3" if is_sum else "(numbers.norm(dim=1) > 2).long()",
            columns="4, []",
            targets="samples(is_training=True)[-1]",
            classes='["inside", "outside"]',
            num_classes="2",
        )
    return piece(
        "data/table",
        kind=sketch.data,
        # Class names are texts, even if they look like numbers.
        vocabularies=", vocabularies={TARGET: None}" if sketch.task == "classification" else "",
        columns="*shape()",
        targets="table().tensors[-1]",
        classes="columns().vocabularies[TARGET]",
        num_classes="len(columns().vocabularies[TARGET])",
        answer="TARGET",
    )


def _tensors(sketch: NewExperiment) -> TemplatePiece:
    targets = "samples(is_training=True)[-1]"
    if sketch.is_made_up:
        is_sum = sketch.task == "regression"
        return piece(
            "data/tensors_made_up",
            made_up_targets="inputs.prod(1) + 3" if is_sum else "(inputs.norm(dim=1) > 2).long()",
            targets=targets,
            classes='["inside", "outside"]',
            num_classes="2",
            num_inputs="samples(is_training=False)[0][0].numel()",
        )
    return piece(
        "data/tensors",
        *(["data/tensors_classes"] if sketch.task == "classification" else []),
        targets=targets,
        classes="[str(number) for number in range(num_classes())]",
        num_classes="num_classes()",
        num_inputs="example().numel()",
    )


def _huggingface(sketch: NewExperiment) -> TemplatePiece:
    is_language = sketch.task == "language-model"
    names = ["data/huggingface_made_up" if sketch.is_made_up else "data/huggingface"]
    if sketch.task == "regression" or not (is_language or sketch.is_made_up):
        names.append("data/huggingface_targets")
    if sketch.task == "classification" and not sketch.is_made_up:
        names.append("data/huggingface_classes")
    if is_language:
        names += ["data/huggingface_language_batches", "data/prompts"]
    else:
        names.append("data/huggingface_batches")
    labels = {"classification": "n % 2", "regression": "n / 100", "language-model": "0"}
    return piece(
        *names,
        fields="`text`" if is_language else "`text` and `label`",
        longest="" if is_language else _LONGEST,
        label=labels[sketch.task],
        targets="targets()",
        classes='["even", "odd"]' if sketch.is_made_up else "classes()",
        num_classes="2" if sketch.is_made_up else "len(classes())",
    )


def _shards(sketch: NewExperiment) -> TemplatePiece:
    """The code that reads shards, by the kind of their source."""
    held_out = sketch.held_out
    if sketch.content == "text":
        return piece("data/shards_text", "data/prompts", held_out=held_out)
    if sketch.content == "images":
        return piece(
            "data/shards_images", held_out=held_out, classes="names()", num_classes="len(classes)"
        )
    if sketch.content == "tensors":
        return piece(
            "data/shards_tensors",
            held_out=held_out,
            classes="names()",
            num_classes="len(names())",
            num_inputs="math.prod(shape())",
        )
    is_classified = sketch.task == "classification"
    return piece(
        "data/shards_table",
        *(["data/shards_classes"] if is_classified else []),
        held_out=held_out,
        each=_CLASSES_OF_EACH if is_classified else _VALUES_OF_EACH,
        columns="*shape()",
        targets="samples(is_training=True).tensors[-1]",
        classes="classes()",
        num_classes="len(classes())",
        answer="TARGET",
    )
