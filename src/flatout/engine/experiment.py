"""What a person writes: how to build a model, its optimizer, its loss and its data.

Everything that has state is given as a factory, so that a trial, a reference or a rank can build
all of it again. This file does not import torch: an experiment is described without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from flatout.engine.field_checks import check_functions, check_kinds, check_names
from flatout.engine.person_code import given_as
from flatout.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from flatout.engine.confusion_matrix import Confusion
    from flatout.engine.custom_step import Updates

    Mean = Tensor | tuple[Tensor, Tensor | float]
    Loss = Callable[[nn.Module, Any], Mean]
    Step = Callable[[Updates, nn.Module, Any], Mean | Mapping[str, Mean]]
    Metrics = Callable[[nn.Module, Any], Mapping[str, Mean | Confusion]]
    Optimizers = Optimizer | Mapping[str, Optimizer]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A training to be run: what is computed, not how fast.

    Args:
        model: builds the model, on the CPU, in fp32.
        optimizer: builds the optimizer from the model's parameters, as `model.parameters()` gives
            them; with `named_parameters=True` from (name, parameter) pairs, to make groups of. It
            may return several optimizers in a dict by name.
        loss: `loss(model, batch)` returns the mean over the batch's samples (a scalar), or a sum
            and its count, for means over tokens that must stay exact when a batch is accumulated
            from micro-batches of unequal counts.
        step: instead of `loss`: `step(updates, model, batch)` makes the updates itself, by
            `updates["name of the optimizer"](loss)`, and returns the loss to be shown, or several
            in a dict by name.
        train_data: builds the training data: a tensor, or a tuple, list or dict of tensors with the
            same first dimension; a map-style dataset (`__len__`, `__getitem__`); or an iterable of
            samples. Called once for each process.
        validation_data: the same for validation, or None.
        metrics: `metrics(model, batch)` returns for each name a mean over the batch's samples, or a
            sum and its count, or what `flatout.engine.confusion` gives. Called in evaluation mode
            without gradients. If it gives no `loss`, the loss is computed beside it.
        batch_size: samples per update.
        epochs, steps: how long to train; exactly one of them.
        schedule: builds a learning-rate scheduler from the optimizer, or None. Of several
            optimizers it gets the dict, and may return a dict of schedulers. If it takes
            `total_steps`, it is given how often the scheduler steps in the whole training.
        schedule_every: when the scheduler steps: after each `epoch` or each `step`.
        collate: makes a batch of a list of samples; None stacks tensors, numbers and their
            tuples and dicts. Not used for tensors, which are sliced.
        shuffle: a new order of the training samples in each epoch.
        validate_every: `epoch`, or a number of steps.
        best: the metric that decides which weights are kept; larger is better unless its name
            ends in loss, error, mse (and so rmse), mae, perplexity, ppl, wer, cer, bpc or nll.
            `macro_f1` and its like are computed from a confusion.
        early_stop: stop after that many validations without a better one; None never does.
        ema: decay of an exponential moving average of the weights (0.999, say), which is then what
            is validated and kept; None keeps none.
        clip_norm: largest 2-norm of all gradients together (with `step`: of those of each update);
            None does not clip.
        unit: what a sample is, for rates: `images`, `sequences`.
        labels: names of the classes that a classifier tells apart, in the order of their numbers.
        generate: `generate(model)` returns texts that show what the model can do; called after
            each validation, in evaluation mode without gradients, and kept in the run's folder.
        predict: `predict(model, batch)` returns what is told of each sample: a tensor or a list
            with an entry for each, or a dict of such. With `labels`, a tensor (samples, classes)
            holds probabilities. None calls the model with the batch: `model(tensor)`,
            `model(*tuple)` or `model(**dict)`; with `labels`, the softmax of what comes is told.
        predict_data: makes data, of any of the kinds of `train_data`, of one input of
            `flatout predict`: a path or a text. None reads tensors from .npy and .safetensors.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], Optimizers]
    loss: Loss | None = None
    step: Step | None = None
    train_data: Callable[[], Any]
    validation_data: Callable[[], Any] | None = None
    metrics: Metrics | None = None
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    schedule: Callable[..., Any] | None = None
    schedule_every: Literal["epoch", "step"] = "epoch"
    named_parameters: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    shuffle: bool = True
    validate_every: Literal["epoch"] | int = "epoch"
    best: str = "loss"
    early_stop: int | None = None
    ema: float | None = None
    clip_norm: float | None = None
    unit: str = "samples"
    labels: Sequence[str] | None = None
    generate: Callable[[nn.Module], Sequence[str]] | None = None
    predict: Callable[[nn.Module, Any], Any] | None = None
    predict_data: Callable[[str], Any] | None = None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Refuses wrong names before Python does, which would name no right one."""
        check_names(fields, len(values), cls.__dataclass_fields__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_kinds(vars(self))
        check_functions(vars(self))
        for name, value in (
            ("batch_size", self.batch_size),
            ("epochs", self.epochs),
            ("steps", self.steps),
            ("early_stop", self.early_stop),
        ):
            if value is not None and value < 1:
                raise _bad(f"`{name}` is {value}; it must be at least 1.")
        if self.validate_every != "epoch" and not (
            isinstance(self.validate_every, int) and self.validate_every >= 1
        ):
            raise _bad(f"`validate_every` is {self.validate_every!r}; use `epoch` or a number.")
        if self.schedule_every not in ("epoch", "step"):
            raise _bad(f"`schedule_every` is {self.schedule_every!r}; use `epoch` or `step`.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise _bad(f"`clip_norm` is {self.clip_norm}; it must be above 0.")
        if self.early_stop is not None and self.validation_data is None:
            raise _bad("`early_stop` needs `validation_data` to judge by.")
        if self.loss is None and self.step is None:
            raise _bad("the experiment has no `loss`.", "give loss(model, batch), or a `step`")
        if self.loss is not None and self.step is not None:
            raise _bad("the experiment has both `loss` and `step`.", "leave one of them out")
        if self.step is not None and self.validation_data is not None and self.metrics is None:
            raise _bad("with `step`, validation needs `metrics`: there is no `loss` to compute.")
        if self.epochs is None and self.steps is None:
            raise _bad("the experiment has neither `epochs` nor `steps`.", "give one of them")
        if self.epochs is not None and self.steps is not None:
            raise _bad("the experiment has both `epochs` and `steps`.", "leave one of them out")
        if self.ema is not None and not 0 < self.ema < 1:
            raise _bad(f"`ema` is {self.ema}; a decay lies between 0 and 1.")
        if self.labels is not None:
            _check_labels(self.labels)


def require_experiment(value: Any, verb: str) -> Experiment:
    """The experiment; refuses what only leads to one.

    Raises:
        UsageError: bad-experiment.
    """
    if isinstance(value, Experiment):
        return value
    if isinstance(value, type):
        what, fix = f"the class {value.__name__}", f"make one: {verb}(Experiment(model=..., ...))"
    elif callable(value):
        name = getattr(value, "__name__", "experiment")
        what, fix = f"the function `{name}`", f"call it: {verb}({name}())"
    elif isinstance(value, str):
        what = f"the text {value!r}"
        fix = f"give an Experiment; a file or a built-in is trained by: flatout train {value}"
    else:
        what, fix = f"a {type(value).__name__}", f"give an Experiment: {verb}(Experiment(...))"
    raise UsageError("bad-experiment", f"`{verb}` was given {what}, not an Experiment.", fix=fix)


def _check_labels(labels: Sequence[str]) -> None:
    # A text is a sequence of texts too: "cat" would name three classes.
    if (
        isinstance(labels, str)
        or not isinstance(labels, Sequence)
        or not all(isinstance(label, str) for label in labels)
    ):
        raise _bad(f"`labels` is {labels!r}; give a list of texts, one for each class.")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if list(labels).count(label) > 1)
        raise _bad(f"`labels` has {twice!r} twice; each class needs a name of its own.")


def _bad(
    problem: str, fix: str = "correct the experiment; see flatout docs experiments"
) -> UsageError:
    field = problem.partition("`")[2].partition("`")[0]
    place = given_as(field).place
    because = place.with_code if place is not None else None
    return UsageError("bad-experiment", problem, because=because, fix=fix)
