"""Do smaller parts of a batch compute what the batch does? Asked before a training takes them.

They do not where samples are compared with each other (CLIP, SimCLR), or where a loss is a mean
over something else than samples. A few are used, twice: as the training makes them, and in halves.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flatout.engine.experiment import Experiment
from flatout.engine.feed.data_kind import data_kind
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.feed.select_feed import built_data
from flatout.engine.gate.comparison import gradient_errors
from flatout.engine.gate.fakes import few_samples
from flatout.engine.gate.fixtures import GateFixtures, GateSubject
from flatout.engine.gate.reference import Gradients, reference_gradients
from flatout.engine.gate.runs import drawing, first_updates, running
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import is_out_of_memory, one_line
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors
from flatout.schema.recipe import Recipe
from flatout.system.clock import elapsed_s

_NUM_SAMPLES, _NUM_UPDATES = 4, 2
# Relative errors of all gradients together, and of a single one: in fp64, and in fewer bits.
_ALLOWED = {True: (1e-6, 1e-2), False: (2e-2, 0.5)}
# Of a metric, in the format of the training.
_METRIC_ALLOWED = 1e-3


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training to be split. data: the result of `train_data`; an iterable is not touched.

    are_norms_fixed: BatchNorm computes with its averages, so that only the rest is checked.
    num_parameters: of the model. limit_s: about how long the answer may take, where others wait for
    it; None lets it take as long as it does. has_second_try: where there is no memory for it on the
    device, the CPU is used.
    """

    experiment: Experiment
    seed: int
    device: torch.device
    data: Any
    are_norms_fixed: bool = False
    num_parameters: int = 0
    limit_s: float | None = None
    has_second_try: bool = True


# What a CPU and a GPU can compute within a limit: a few passes of more weights take minutes.
_MOST_WEIGHTS = {"cpu": 10**8, "cuda": 4 * 10**9}


class _TimeLimitExceeded(Exception):
    """The answer takes longer than others are to wait for it."""


# What a reason begins with where nothing about the loss was found out.
UNCHECKED = "it could not be verified"


def why_not_split(training: Training, recipe: Recipe, *, has_device: bool = True) -> str | None:
    """The reason why smaller parts of a batch would compute something else; None if they do not.

    Where it cannot be computed, that is a reason as well: nothing is changed without a proof.

    Args:
        training: what is trained.
        recipe: of its step.
        has_device: False where the GPU was lost: then only the CPU is used, and nothing on the
            GPU is touched, not even its memory or its generator.
    """
    problem, is_short = "", False
    cpu = torch.device("cpu")
    until_s = math.inf if training.limit_s is None else elapsed_s() + training.limit_s
    # Memory is short on the device: the computer's is the second try.
    for device in dict.fromkeys((training.device, cpu) if has_device else (cpu,)):
        for is_double in (True, False):
            try:
                _check_weights(training, device)
                if has_device:
                    release_memory()
                else:
                    gc.collect()
                rng_device = training.device if has_device else cpu
                with rng.untouched_generators(rng_device), torch.enable_grad():
                    return _split_problem(training, recipe, device, until_s, is_double=is_double)
            except _TimeLimitExceeded as error:
                return f"{UNCHECKED} that the result would be identical ({error})"
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing is proved
                problem = problem or one_line(error)
                is_short = is_out_of_memory(error)
        if is_short and not training.has_second_try:
            break
    return f"{UNCHECKED} that the result would be identical ({problem})"


def _check_weights(training: Training, device: torch.device) -> None:
    most = _MOST_WEIGHTS.get(device.type)
    if training.limit_s is not None and most is not None and training.num_parameters > most:
        raise _TimeLimitExceeded(
            f"with {training.num_parameters:,} parameters the check would take too long on "
            f"{'the CPU' if device.type == 'cpu' else 'the GPU'}"
        )


def _check_clock(until_s: float) -> None:
    if elapsed_s() > until_s:
        raise _TimeLimitExceeded("the check took too long")


def _split_problem(
    training: Training, recipe: Recipe, device: torch.device, until_s: float, *, is_double: bool
) -> str | None:
    data = training.data
    if data_kind(data) == "iterable":
        data = built_data(training.experiment, training.experiment.train_data)
        if data is training.data:
            return f"{UNCHECKED}: `train_data` returns the same iterable each time"
    experiment = original = training.experiment
    if training.are_norms_fixed:
        experiment = replace(original, model=lambda: _with_fixed_norms(original.model()))
    subject = GateSubject(
        experiment=experiment, seed=training.seed, device=str(device),
        num_samples=_NUM_SAMPLES, train_data=data,
    )  # fmt: skip
    fixtures = GateFixtures(subject, recipe)
    if fixtures.size < 2:
        return None
    precision = recipe.precision.value
    has_own_precision = not is_double and device == training.device and precision != "float8"
    small = fixtures.small(
        recipe, clip_norm=None, precision=precision if has_own_precision else "fp32",
        compiled="off", activation_checkpointing=False,
    )  # fmt: skip
    whole, halves = (
        _gradients(fixtures, small, until_s, is_halved=is_halved, is_double=is_double)
        for is_halved in (False, True)
    )
    names = [name for name, _ in fixtures.model.named_parameters()]
    errors = gradient_errors(names, halves, whole, whole)
    allowed, allowed_of_one = _ALLOWED[is_double]
    worst = max((part.error for part in errors.parts), default=0.0)
    if not (errors.error <= allowed and worst <= allowed_of_one):
        return (
            "the loss would change: its samples depend on each other, or it is a mean over "
            "something other than samples"
        )
    return _validation_problem(training, fixtures, small, until_s)


def _with_fixed_norms(model: nn.Module) -> nn.Module:
    """The model with BatchNorms fixed in evaluation mode."""
    for norm in [module for module in model.modules() if isinstance(module, _BatchNorm)]:
        norm.eval()
        # An attribute of the object hides the method of its class.
        norm.train = _NoOpTrain(norm)  # type: ignore[assignment]
    return model


class _NoOpTrain:
    """A norm's `train`, which changes nothing."""

    def __init__(self, norm: nn.Module) -> None:
        self._norm = norm

    def __call__(self, mode: bool = True) -> nn.Module:
        return self._norm


def _gradients(
    fixtures: GateFixtures, recipe: Recipe, until_s: float, *, is_halved: bool, is_double: bool
) -> Gradients:
    _check_clock(until_s)
    case = fixtures.case(fixtures.remembering, recipe, is_plain=True, draws="expected")
    loss = case.experiment.loss
    assert loss is not None, "an experiment with a step of its own takes the whole batch"
    with running(case) as (session, _):
        updates = first_updates(session, _NUM_UPDATES)
        if is_halved:
            updates = [list(_halved(update)) for update in updates]
        with drawing(case, session.device):

            def timed(model: nn.Module, batch: Any) -> Any:
                _check_clock(until_s)
                with contextlib.nullcontext() if is_double else session.autocast():
                    return loss(model, batch)

            return reference_gradients(session.model, timed, updates, is_double=is_double)


def _halved(update: list[MicroBatch]) -> Iterator[MicroBatch]:
    """The rows of each micro-batch in two parts.

    Raises:
        ValueError: it does not consist of rows.
    """
    for batch, size in update:
        if not is_all_tensors(batch):
            raise ValueError("its batches are not tensors with a row for each sample")
        sizes = [size - size // 2, size // 2] if size > 1 else [size]
        rows = [tensor.split(sizes) for tensor in tensors_in(batch)]
        for number, part in enumerate(sizes):
            yield with_tensors(batch, iter([row[number] for row in rows])), part


def _validation_problem(
    training: Training, fixtures: GateFixtures, recipe: Recipe, until_s: float
) -> str | None:
    """The metric that would be another number over smaller batches; None where none would."""
    # Not at the top: validation is above the gate.
    from flatout.engine.session.validation import values_of_batch

    experiment = training.experiment
    if experiment.validation_data is None:
        return None
    _check_clock(until_s)
    data = few_samples(built_data(experiment, experiment.validation_data), _NUM_SAMPLES)
    small = replace(fixtures.experiment, validation_data=lambda: data)
    case = fixtures.case(small, recipe, is_plain=True, draws="expected")
    with running(case) as (session, _), torch.no_grad():
        session.model.eval()
        feed = session.validation_feed
        assert feed is not None
        [update] = list(feed.updates(0, 0))[:1]
        measured: list[dict[str, float]] = []
        stack = drawing(case, session.device)
        for batches in (update, update, list(_halved(update))):
            sums: dict[str, tuple[float, float]] = {}
            for batch, size in batches:
                _check_clock(until_s)
                placed = session.to_device(batch) if session.to_device is not None else batch
                with session.autocast():
                    values = values_of_batch(experiment, session.model, placed)
                for name, value in values.items():
                    if isinstance(value, tuple):
                        total, count = float(value[0]), float(value[1])
                    elif isinstance(value, int | float | torch.Tensor):
                        total, count = float(value) * size, float(size)
                    else:
                        # Counts, which are added up.
                        continue
                    before = sums.get(name, (0.0, 0.0))
                    sums[name] = (before[0] + total, before[1] + count)
            measured.append({name: total / (count or 1.0) for name, (total, count) in sums.items()})
        stack.close()
    for name, value in measured[0].items():
        allowed = _METRIC_ALLOWED * max(1e-6, abs(value))
        # What draws from elsewhere is another number each time.
        is_repeated = abs(measured[1][name] - value) <= allowed
        if is_repeated and abs(measured[2][name] - value) > allowed:
            return f"the validation's `{name}` would change"
    return None
