"""Model, loss and metrics for each task and kind of data, and the function `experiment`."""

from __future__ import annotations

from flatout.runs.model.new_experiment import NewExperiment
from flatout.runs.scaffold.piece import TemplatePiece, piece

_UNITS = {
    "images": "images", "csv": "rows", "parquet": "rows", "text": "windows",
    "huggingface": "texts",
}  # fmt: skip


def task(draft: NewExperiment) -> TemplatePiece:
    """Loss and metrics; fills in `$outputs`, `$best`."""
    if draft.task == "classification":
        return piece("tasks/classification", outputs="$num_classes", best='"accuracy"')
    if draft.task == "regression":
        return piece("tasks/regression", outputs="1", best='"mae"', answer='"target"')
    return piece("tasks/language_model", best='"loss"')


def entry(draft: NewExperiment, classes: str) -> TemplatePiece:
    """The function `experiment`; classes: an expression for the names of the classes, if any."""
    is_language = draft.task == "language-model"
    parameters = ["lr: float = 3e-3", "width: int = $width"]
    parameters += ["depth: int = 2", "context: int = 64"] if is_language else []
    parameters += ["batch_size: int = 32", "steps: int = 300"]
    given = ", context=context" if is_language and draft.data != "huggingface" else ""
    data = [
        f"train_data=lambda: samples(is_training=True{given}),",
        f"validation_data=lambda: samples(is_training=False{given}),",
    ]
    if draft.data == "huggingface":
        # A lambda cannot be pickled for the loader's workers on Windows.
        data.append(f"collate={'partial(collate, context=context)' if is_language else 'collate'},")
    has_labels = draft.task == "classification" and classes != ""
    # The model needs them too, so they are read once.
    is_read = has_labels and draft.content == "images" and not draft.is_made_up
    labels = "classes" if is_read else classes
    return piece(
        "experiment",
        parameters="\n".join(f"{parameter}," for parameter in parameters),
        before=f"classes = {classes}" if is_read else "",
        whole_model="Scaled($model, *scale())" if draft.task == "regression" else "$model",
        data="\n".join(data),
        labels=f"labels={labels}," if has_labels else "",
        # Without `predict` classes and their probabilities are printed.
        predict="" if draft.task == "classification" else "predict=predict,",
        unit=_UNITS.get(draft.content, "samples"),
    )


def model(draft: NewExperiment) -> TemplatePiece:
    """The model that fits the data of a sketch; it fills in `$model` and `$width`."""
    if draft.task == "language-model":
        return piece("models/gpt", model="Net(width, depth, context)", width="64")
    if draft.data == "huggingface":
        return piece("models/byte_reader", model="Net(width, $outputs)", width="32")
    if draft.content in ("csv", "parquet"):
        return piece("models/table", model="Net(width, $outputs, $columns)", width="64")
    if draft.content == "images":
        return piece("models/images", model="Net(width, $outputs)", width="16")
    return piece("models/tensors", model="build_model(width, $outputs)", width="64")
