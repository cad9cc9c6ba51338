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


def source(draft: NewExperiment) -> TemplatePiece:
    """The code that reads the data of a sketch.

    The pieces define `samples(is_training)`, and fill in `$num_classes`, which may call it, and
    `$classes`, what the classes are called.
    """
    if draft.data == "shards" and not draft.is_made_up:
        return _shards(draft)
    if draft.data in ("csv", "parquet"):
        return _table(draft)
    if draft.data == "huggingface":
        return _huggingface(draft)
    if draft.task == "language-model":
        return piece("data/text_made_up" if draft.is_made_up else "data/text", "data/prompts")
    if draft.data == "images":
        return _images(draft)
    return _tensors(draft)


def _images(draft: NewExperiment) -> TemplatePiece:
    if draft.is_made_up:
        return piece("data/images_made_up", classes="CLASSES", num_classes="len(CLASSES)")
    return piece("data/images", classes="names()", num_classes="len(classes)")


def _table(draft: NewExperiment) -> TemplatePiece:
    is_sum = draft.task == "regression"
    if draft.is_made_up:
        return piece(
            "data/table_made_up",
            kind=draft.data,
            made_up_targets="numbers.prod(1) + 3" if is_sum else "(numbers.norm(dim=1) > 2).long()",
            columns="4, []",
            targets="samples(is_training=True)[-1]",
            classes='["inside", "outside"]',
            num_classes="2",
        )
    return piece(
        "data/table",
        kind=draft.data,
        # Class names are texts, even if they look like numbers.
        vocabularies=", vocabularies={TARGET: None}" if draft.task == "classification" else "",
        columns="*shape()",
        targets="table().tensors[-1]",
        classes="columns().vocabularies[TARGET]",
        num_classes="len(columns().vocabularies[TARGET])",
        answer="TARGET",
    )


def _tensors(draft: NewExperiment) -> TemplatePiece:
    targets = "samples(is_training=True)[-1]"
    if draft.is_made_up:
        is_sum = draft.task == "regression"
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
        *(["data/tensors_classes"] if draft.task == "classification" else []),
        targets=targets,
        classes="[str(number) for number in range(num_classes())]",
        num_classes="num_classes()",
        num_inputs="example().numel()",
    )


def _huggingface(draft: NewExperiment) -> TemplatePiece:
    is_language = draft.task == "language-model"
    names = ["data/huggingface_made_up" if draft.is_made_up else "data/huggingface"]
    if draft.task == "regression" or not (is_language or draft.is_made_up):
        names.append("data/huggingface_targets")
    if draft.task == "classification" and not draft.is_made_up:
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
        label=labels[draft.task],
        targets="targets()",
        classes='["even", "odd"]' if draft.is_made_up else "classes()",
        num_classes="2" if draft.is_made_up else "len(classes())",
    )


def _shards(draft: NewExperiment) -> TemplatePiece:
    """The code that reads shards, by the kind of their source."""
    held_out = draft.held_out
    if draft.content == "text":
        return piece("data/shards_text", "data/prompts", held_out=held_out)
    if draft.content == "images":
        return piece(
            "data/shards_images", held_out=held_out, classes="names()", num_classes="len(classes)"
        )
    if draft.content == "tensors":
        return piece(
            "data/shards_tensors",
            held_out=held_out,
            classes="names()",
            num_classes="len(names())",
            num_inputs="math.prod(shape())",
        )
    is_classified = draft.task == "classification"
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
