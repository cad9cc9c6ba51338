"""An experiment, as users write it: how to build a model, its optimizer, its loss and its data.

Everything that has state is given as a factory, so that each trial, baseline and rank can build
its own. This file does not import torch, so that an experiment can be defined without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from flatout.engine.experiment_checks import check_functions, check_kinds, check_names
from flatout.engine.runtime.user_code import given_as, kind_text
from flatout.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from flatout.engine.hooks import Hook
    from flatout.engine.tensors.confusion_matrix import Confusion

    Mean = Tensor | tuple[Tensor, Tensor | float]
    Loss = Callable[[nn.Module, Any], Mean]
    Step = Callable[["Updates", nn.Module, Any], Mean | Mapping[str, Mean]]
    Metrics = Callable[[nn.Module, Any], Mapping[str, Mean | Confusion]]
    Optimizers = Optimizer | Mapping[str, Optimizer]


class OptimizerUpdate(Protocol):
    """Makes updates of one optimizer's weights."""

    def __call__(self, loss: Tensor, *, retain_graph: bool = False) -> Tensor:
        """Backward, clipping and the optimizer's step; the gradients are empty before and after.

        Only this optimizer's weights get gradients, even if the loss depends on others as well.

        Args:
            loss: a scalar that depends on the optimizer's weights; with several ranks, the mean
                over this rank's samples.
            retain_graph: keeps what backward needs, for another update from the same forward pass.

        Returns:
            The loss of the whole batch, detached.

        Raises:
            UsageError: loss-is-not-a-scalar.
        """
        ...


class Updates(Protocol):
    """Makes the updates in an experiment's `step(updates, model, batch)`.

    `updates["generator"](loss)` makes an update with the optimizer that the experiment named
    `generator`; a single optimizer without a name is `updates["optimizer"]`.
    """

    @property
    def step(self) -> int:
        """Number of steps before this one; a resumed run continues the count."""
        ...

    def __getitem__(self, name: str) -> OptimizerUpdate:
        """The updates of the optimizer of that name."""
        ...


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A training experiment: the computation, not its speed.

    Args:
        model: builds the model, on the CPU, in fp32.
        optimizer: builds the optimizer from `model.parameters()`; with `named_parameters=True`
            from (name, parameter) pairs, for parameter groups. It may return a dict of several
            optimizers by name.
        loss: `loss(model, batch)` returns the mean over the batch's samples (a scalar), or a sum
            and its count: means over tokens then stay exact with gradient accumulation, where
            micro-batches have unequal counts.
        step: instead of `loss`: `step(updates, model, batch)` makes the updates itself, with
            `updates["name of the optimizer"](loss)`, and returns the loss to show, or a dict of
            several by name.
        train_data: builds the training data: a tensor, or a tuple, list or dict of tensors with the
            same first dimension; a map-style dataset (`__len__`, `__getitem__`); or an iterable of
            samples. Called once in each process.
        validation_data: the same for validation, or None.
        metrics: `metrics(model, batch)` returns for each name a mean over the batch's samples, or a
            sum and its count, or a `flatout.engine.confusion`. Called in evaluation mode without
            gradients. If it returns no `loss`, the loss is computed as well.
        batch_size: samples per update.
        epochs, steps: how long to train; exactly one of them.
        schedule: builds a learning-rate scheduler from the optimizer, or None. With several
            optimizers it gets the dict, and may return a dict of schedulers. If it takes
            `total_steps`, it gets the number of scheduler steps in the whole training.
        schedule_every: when the scheduler steps: after each `epoch` or each `step`.
        collate: makes a batch from a list of samples; None stacks tensors, numbers, and tuples
            and dicts of them. Not used for tensors, which are sliced.
        shuffle: a new order of the training samples in each epoch.
        validate_every: `epoch`, or a number of steps.
        best: the metric that decides which weights are kept; larger is better unless its name
            ends in loss, error, mse (and so rmse), mae, perplexity, ppl, wer, cer, bpc or nll.
            `macro_f1` and similar metrics are computed from a confusion.
        early_stop: stop after this many validations without improvement; None never does.
        ema: decay of an exponential moving average of the weights (such as 0.999); the averages
            are then validated and kept instead of the weights. None keeps no average.
        clip_norm: largest 2-norm of all gradients together (with `step`: of each update's
            gradients); None does not clip.
        unit: what a sample is, for rates: `images`, `sequences`.
        labels: class names of a classifier, in the order of their numbers.
        hooks: builds a hook or a list of them: objects whose `on_start`, `on_epoch`,
            `on_validation` or `on_step` are called with a context while the experiment is trained,
            to freeze weights, log, or stop.
        generate: `generate(model)` returns texts that show what the model can do; called after
            each validation, in evaluation mode without gradients, and kept in the run's folder.
        predict: `predict(model, batch)` returns the prediction for each sample: a tensor or a list
            with one entry per sample, or a dict of these. With `labels`, a tensor (samples,
            classes) holds probabilities. None calls the model with the batch: `model(tensor)`,
            `model(*tuple)` or `model(**dict)`; with `labels`, it takes the softmax of the output.
        predict_data: builds data, of any kind allowed for `train_data`, from one input of
            `flatout predict`: a path or a text. None reads tensors from .npy and .safetensors.
        decode: builds the same from one input of `flatout serve`: the bytes of a file, a text, or
            a value of JSON's kinds. None writes a file's bytes into a temporary file for
            `predict_data`, passes it a text, and takes lists of numbers as tensors.
        encode: makes a value of JSON's kinds of one sample's prediction for `flatout serve`. None
            writes tensors as lists, and images as base64 text of a PNG file.
        stream: `stream(model, sample)` yields the prediction for one sample as texts, piece by
            piece, for `flatout serve`. A sample of tensors is on the device, without the
            dimension of the samples.
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
    hooks: Callable[[], Hook | Sequence[Hook]] | None = None
    generate: Callable[[nn.Module], Sequence[str]] | None = None
    predict: Callable[[nn.Module, Any], Any] | None = None
    predict_data: Callable[[str], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    encode: Callable[[Any], Any] | None = None
    stream: Callable[[nn.Module, Any], Iterator[str]] | None = None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Refuses wrong names before Python does, to suggest the right one."""
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
                raise _bad_experiment(f"`{name}` is {value}; it must be at least 1.")
        if self.validate_every != "epoch" and not (
            isinstance(self.validate_every, int) and self.validate_every >= 1
        ):
            raise _bad_experiment(
                f"`validate_every` is {self.validate_every!r}; use `epoch` or a number."
            )
        if self.schedule_every not in ("epoch", "step"):
            raise _bad_experiment(
                f"`schedule_every` is {self.schedule_every!r}; use `epoch` or `step`."
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise _bad_experiment(f"`clip_norm` is {self.clip_norm}; it must be above 0.")
        if self.early_stop is not None and self.validation_data is None:
            raise _bad_experiment("`early_stop` needs `validation_data`.")
        if self.loss is None and self.step is None:
            raise _bad_experiment(
                "the experiment has no `loss`.", "give loss(model, batch), or a `step`"
            )
        if self.loss is not None and self.step is not None:
            raise _bad_experiment(
                "the experiment has both `loss` and `step`.", "leave one of them out"
            )
        if self.step is not None and self.validation_data is not None and self.metrics is None:
            raise _bad_experiment(
                "with `step`, validation needs `metrics`, since there is no `loss`."
            )
        if self.epochs is None and self.steps is None:
            raise _bad_experiment(
                "the experiment has neither `epochs` nor `steps`.", "give one of them"
            )
        if self.epochs is not None and self.steps is not None:
            raise _bad_experiment(
                "the experiment has both `epochs` and `steps`.", "leave one of them out"
            )
        if self.ema is not None and not 0 < self.ema < 1:
            raise _bad_experiment(f"`ema` is {self.ema}; a decay must be between 0 and 1.")
        if self.labels is not None:
            _check_labels(self.labels)


def require_experiment(value: Any, verb: str) -> Experiment:
    """Returns the experiment; refuses anything else, such as a function that builds one.

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
        what = f"the string {value!r}"
        fix = f"give an Experiment; to train a file or a built-in, run: flatout train {value}"
    else:
        what, fix = kind_text(value), f"give an Experiment: {verb}(Experiment(...))"
    raise UsageError("bad-experiment", f"`{verb}` was given {what}, not an Experiment.", fix=fix)


def _check_labels(labels: Sequence[str]) -> None:
    # A string is a sequence of strings too: "cat" would name three classes.
    if (
        isinstance(labels, str)
        or not isinstance(labels, Sequence)
        or not all(isinstance(label, str) for label in labels)
    ):
        raise _bad_experiment(
            f"`labels` is {labels!r}; give a list of strings, one for each class."
        )
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if list(labels).count(label) > 1)
        raise _bad_experiment(f"`labels` has {twice!r} twice; each class needs its own name.")


def _bad_experiment(
    problem: str, fix: str = "correct the experiment; see flatout docs experiments"
) -> UsageError:
    field = problem.partition("`")[2].partition("`")[0]
    location = given_as(field).location
    because = location.with_code if location is not None else None
    return UsageError("bad-experiment", problem, because=because, fix=fix)
