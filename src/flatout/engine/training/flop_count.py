"""FLOPs of a training step, counted on a copy of the model: no number of the run is touched.

Counted are matrix products, convolutions and attention, forward and backward, with the formulas of
`torch.utils.flop_counter`: what the model needs, without what activation checkpointing computes
twice. On a GPU the copy has fake tensors, which have shapes and take no memory. On a CPU it is real
and small models only are counted: fake tensors would import torch's compiler, which takes seconds.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import one_line
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import BuiltExperiment, Session
from flatout.engine.step.step import value_and_count
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.schema.recipe import Recipe
from flatout.schema.run_lines import FlopsCounted
from flatout.system.clock import elapsed_s, now_s

# Of the training time so far.
_MOST_SHARE = 0.01
# A real copy takes memory twice: for weights and for gradients.
_MOST_COPIED_BYTES = 256 * 2**20
# In the middle of a run, a count with fake tensors is not worth being tried with less.
_LEAST_LIMIT_S = 1.0
_PLAIN = (str, bytes, int, float, bool, type(None), torch.dtype)


class _TookTooLong(Exception):
    """The limit has passed."""


class FlopCount:
    """Counts the FLOPs of a session's step, once and when the run is long enough for it.

    Args:
        session: whose step it is.
    """

    def __init__(self, session: Session) -> None:
        # What exchanges something within a pass would wait for the other ranks.
        is_possible = session.sharding is None and session.passes is None
        is_wanted = session.ranks.is_first and session.experiment.loss is not None
        self._session = session
        self._is_open = is_possible and is_wanted
        self._shapes: MicroBatch | None = None
        self._least_s = 0.0

    def see(self, update: list[MicroBatch]) -> None:
        """Takes note of the shapes of the first batch."""
        if not self._is_open or self._shapes is not None or not update[0][1]:
            return
        batch, num_samples = update[0]
        self._is_open = _is_plain(batch)
        if self._is_open:
            # Not empty_like: on the meta device, that imports a library for algebra.
            empty = (
                torch.empty(one.shape, dtype=one.dtype, device="meta") for one in tensors_in(batch)
            )
            self._shapes = with_tensors(batch, empty), num_samples

    def log(self, event_log: EventLog, timer: StepTimer, *, is_last: bool) -> None:
        """Counts and logs, if it is time for it. is_last: there will not be more of it."""
        if not self._is_open:
            return
        self._is_open = not event_log.history.are_flops_counted
        train_s = sum(timer.split_s().values())
        step_s = timer.steps_s() / max(self._session.position.step, 1)
        line = self.line(train_s, step_s=step_s, is_last=is_last)
        if line is not None:
            event_log.event(line)

    def line(self, train_s: float, *, step_s: float, is_last: bool) -> FlopsCounted | None:
        """The event; None if it was counted before, or would take too much of the training time.

        Args:
            train_s: how long the run has trained.
            step_s: how long an update takes.
            is_last: there will not be more time.
        """
        session, limit_s = self._session, _MOST_SHARE * train_s
        is_fake = session.device.type == "cuda"
        least_s = 2 * step_s if not is_fake else 0.0 if is_last else _LEAST_LIMIT_S
        if not self._is_open or self._shapes is None or limit_s < max(least_s, self._least_s):
            return None
        shapes, num_samples = self._shapes
        try:
            flops = step_flops(session.experiment, session.model, shapes, session.device, limit_s)
        except _TookTooLong:
            # All attempts together take little more than the last one.
            self._least_s = 4 * limit_s
            return None
        self._is_open = False
        step = session.position.step
        if isinstance(flops, str):
            return FlopsCounted(at=now_s(), step=step, reason=flops)
        return FlopsCounted(at=now_s(), step=step, flops_per_sample=flops / num_samples)


def counted_alone(built: BuiltExperiment, recipe: Recipe, spent_s: float) -> FlopsCounted | None:
    """The same for an experiment that is not trained, after a search that took `spent_s`."""
    try:
        session = Session(built, recipe)
        try:
            count = FlopCount(session)
            count.see(next(session.feed.updates(0, 0)))
            return count.line(spent_s, step_s=0.0, is_last=True)
        finally:
            session.close()
    except Exception as error:  # noqa: BLE001 - the search has its result without this one
        return FlopsCounted(at=now_s(), step=0, reason=one_line(error))


def step_flops(
    experiment: Experiment, model: nn.Module, shapes: Any, device: torch.device, limit_s: float
) -> int | str:
    """FLOPs of the forward and the backward pass of a batch, or why they cannot be counted.

    Args:
        experiment: has the loss.
        model: stays as it is.
        shapes: a batch on the meta device.
        device: of the model; generators stay as they are.
        limit_s: it gives up after so long.

    Raises:
        _TookTooLong: it did.
    """
    assert experiment.loss is not None
    is_fake = device.type == "cuda"
    num_bytes = sum(one.numel() * one.element_size() for one in model.parameters())
    if not is_fake and num_bytes > _MOST_COPIED_BYTES:
        return "the model is too large to be copied"
    counter = _Counter(elapsed_s() + limit_s)
    try:
        with rng.untouched_generators(device), torch.enable_grad():
            copied, mode = _fake(model) if is_fake else (copy.deepcopy(model), _nothing())
            _take_back(copied)
            with mode, _uncompiled():
                zeros = (
                    torch.zeros(one.shape, dtype=one.dtype, device=device)
                    for one in tensors_in(shapes)
                )
                batch = with_tensors(shapes, zeros)
                with counter:
                    value_and_count(experiment.loss(copied, batch), "")[0].backward()
    except _TookTooLong:
        raise
    # A model that cannot be copied, a loss that needs the numbers of a batch: their own words.
    except Exception as error:  # noqa: BLE001 - a count must not end a run
        return one_line(error)
    return counter.flops or "there is no matrix product, convolution or attention"


class _Counter(TorchDispatchMode):
    """Adds up FLOPs of operators until a time."""

    def __init__(self, until_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self._until_s = until_s

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if elapsed_s() > self._until_s:
            raise _TookTooLong
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        return result


def _fake(model: nn.Module) -> tuple[nn.Module, contextlib.AbstractContextManager[Any]]:
    """A copy with fake tensors, and the mode in which they compute."""
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

    mode = FakeTensorMode()
    with FakeCopyMode(mode):
        return copy.deepcopy(model), mode


def _take_back(model: nn.Module) -> None:
    """Takes back what flatout has done to the model of which this is a copy: see `model/`."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if type(forward).__module__.startswith("flatout."):
            del vars(module)["forward"]
        if getattr(module, "gradient_checkpointing", False) is True:
            vars(module)["gradient_checkpointing"] = False


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """What an experiment has compiled itself runs as it is written."""
    # Without a real compiler nothing is compiled; asking its stand-in would import it.
    if not hasattr(torch, "_dynamo") or "eval_frame" not in vars(torch._dynamo):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _nothing() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def _is_plain(batch: Any) -> bool:
    """Whether it is made of tensors and constants only: what else there is could not be copied."""
    if isinstance(batch, dict):
        return type(batch) is dict and all(map(_is_plain, batch.values()))
    if isinstance(batch, list | tuple):
        return all(map(_is_plain, batch))
    return type(batch) in (Tensor, *_PLAIN)
