"""What is computed of a batch, for each task, and the function `experiment`."""

from __future__ import annotations

from flatout.nouns.sketch import Sketch
from flatout.templates.piece import Piece

_IMPORTS = ("import torch", "from torch import Tensor, nn")

_CLASSIFICATION = Piece(
    imports=(*_IMPORTS, "from flatout.engine import confusion", "from typing import Any"),
    text="""
def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    *inputs, labels = batch
    return nn.functional.cross_entropy(model(*inputs), labels)


def metrics(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Any]:
    *inputs, labels = batch
    scores = model(*inputs)
    return {
        "accuracy": (scores.argmax(1) == labels).float().mean(),
        # Which class is taken for which: `flatout show` prints it.
        "confusion": confusion(scores, labels),
    }
""",
    words={"outputs": "$num_classes", "best": '"accuracy"'},
)

_REGRESSION = Piece(
    imports=(*_IMPORTS, "from flatout.engine import data", "from typing import Any"),
    text='''
@data.fitted
def scale() -> tuple[float, float]:
    """Mean and deviation of the target to train on; kept with the run."""
    found = $targets.float()
    return float(found.mean()), float(found.std().clamp(min=1e-6))


class Scaled(nn.Module):
    """Learns a target of mean 0 and deviation 1, and answers in its own units."""

    def __init__(self, model: nn.Module, mean: float, deviation: float) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, *inputs: Tensor) -> Tensor:
        answers: Tensor = self.model(*inputs).squeeze(1) * self.deviation + self.mean
        return answers


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    *inputs, targets = batch
    errors = (model(*inputs) - targets.float()) / model.deviation
    return errors.square().mean()


def metrics(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
    *inputs, targets = batch
    return {"mae": (model(*inputs) - targets.float()).abs().mean()}


def predict(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """What `flatout predict` prints, by its name."""
    columns = inputs if isinstance(inputs, tuple) else (inputs,)
    return {$answer: model(*columns)}
''',
    words={"outputs": "1", "best": '"mae"', "answer": '"target"'},
)

_LANGUAGE = Piece(
    imports=(
        "import math",
        *_IMPORTS,
        "from flatout.engine import sampled_tokens",
        "from typing import Any",
    ),
    text='''
def loss(model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
    """A sum and its count: a mean of means would be wrong where lengths differ."""
    seen, following = batch[:, :-1].long(), batch[:, 1:].long()
    scores = model(seen).flatten(0, 1)
    total = nn.functional.cross_entropy(
        scores, following.flatten(), ignore_index=0, reduction="sum"
    )
    return total, (following != 0).sum()


def metrics(model: nn.Module, batch: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    total, count = loss(model, batch)
    return {"loss": (total, count), "bits_per_byte": (total / math.log(2), count)}


def predict(model: Any, prompts: Tensor) -> list[str]:
    """Each text, and 200 bytes of how the model goes on with it."""

    def next_scores(seen: Tensor) -> Tensor:
        scores: Tensor = model(seen[:, -model.places.num_embeddings :])[:, -1]
        return scores

    # One by one: what is drawn for a text must not depend on those beside it.
    written = [
        sampled_tokens(next_scores, prompt.unsqueeze(0), 200, temperature=0.8)[0]
        for prompt in prompts
    ]
    return [bytes(one.tolist()).decode(errors="replace") for one in written]
''',
    words={"best": '"loss"'},
)

_TASKS = {
    "classification": _CLASSIFICATION,
    "regression": _REGRESSION,
    "language-model": _LANGUAGE,
}
_UNITS = {
    "images": "images", "csv": "rows", "parquet": "rows", "text": "windows",
    "huggingface": "texts",
}  # fmt: skip

_EXPERIMENT = """
def experiment(
$parameters
) -> flatout.Experiment:
$before    return flatout.Experiment(
        # Functions that build, not the things themselves: a resume builds them again.
        model=lambda: $whole_model,
        optimizer=lambda parameters: torch.optim.AdamW(
            parameters, lr=lr, weight_decay=0.01
        ),
        # Small steps until the optimizer has seen some gradients, and at the end.
        schedule=lambda optimizer, total_steps: schedules.cosine(
            optimizer, steps=total_steps, warm_up=total_steps // 20
        ),
        schedule_every="step",
        # One batch with a huge gradient must not undo what was learned.
        clip_norm=1.0,
        loss=loss,
        metrics=metrics,
$data        batch_size=batch_size,
        steps=steps,
        validate_every=max(1, steps // 10),
        best=$best,  # Decides which weights are kept.
$labels        predict_data=predict_data,
$predict        unit="$unit",
    )
"""


def task(sketch: Sketch) -> Piece:
    """Loss and metrics; fills in `$outputs`, `$best`."""
    return _TASKS[sketch.task]


def entry(sketch: Sketch, classes: str) -> Piece:
    """The function `experiment`; classes: an expression for the names of the classes, if any."""
    is_language = sketch.task == "language-model"
    parameters = ["lr: float = 3e-3", "width: int = $width"]
    parameters += ["depth: int = 2", "context: int = 64"] if is_language else []
    parameters += ["batch_size: int = 32", "steps: int = 300"]
    given = ", context=context" if is_language and sketch.data != "huggingface" else ""
    data = "".join(
        f"        {field}=lambda: samples(is_training={value}{given}),\n"
        for field, value in (("train_data", True), ("validation_data", False))
    )
    if sketch.data == "huggingface":
        # A lambda could not be sent to the loader's workers under Windows.
        collate = "partial(collate, context=context)" if is_language else "collate"
        data += f"        collate={collate},\n"
    has_labels = sketch.task == "classification" and classes != ""
    # The model needs them too: looked up once.
    is_read = has_labels and sketch.content == "images" and not sketch.is_made_up
    labels = "classes" if is_read else classes
    unit = _UNITS.get(sketch.content, "samples")
    return Piece(
        imports=("import flatout", "from flatout.engine import schedules"),
        text=_EXPERIMENT,
        words={
            "parameters": "\n".join(f"    {one}," for one in parameters),
            "before": f"    classes = {classes}\n" if is_read else "",
            "whole_model": "Scaled($model, *scale())" if sketch.task == "regression" else "$model",
            "data": data,
            "labels": f"        labels={labels},\n" if has_labels else "",
            # Of classes, the labels and their probabilities are told without it.
            "predict": "" if sketch.task == "classification" else "        predict=predict,\n",
            "unit": unit,
        },
    )
