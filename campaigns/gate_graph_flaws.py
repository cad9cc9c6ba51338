"""Captured updates with one flaw each, for the gate to find, on a CPU (recorded_graphs.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gate_flawed_step import FlawedStep
from support.recorded_graphs import RecordedGraphs
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.gate import Maker
from flatout.engine.gate.runs import make_step
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session, build
from flatout.engine.step.captured_step import CapturedStep
from flatout.engine.step.device_lr import DeviceLr
from flatout.engine.step.step import EagerStep, StepParts
from flatout.schema.recipe import Recipe


class FlawedCapture(CapturedStep):
    """Captured updates with one flaw; "" is none."""

    def __init__(self, session: Session, flaw: str) -> None:
        parts = session.step_parts()
        graphs = RecordedGraphs(draws_anew=flaw != "same masks in each replay")
        num_steps = session.recipe.steps_per_launch.value
        super().__init__(parts, StepTimer(session.device), graphs, num_steps)
        self._flaw = flaw
        self._scaler = parts.scaler
        if flaw == "learning rate frozen in the graph":
            self._rates = _FrozenRates(parts.optimizers.only, session.device, num_steps)
        if flaw in _FLAWS_OF_STEPS:
            self._step = _Recordable(replace(parts, to_device=None), _FLAWS_OF_STEPS[flaw])
        if flaw in _LEFT_OUT:
            placed = replace(parts, to_device=None)
            self._step = _AsRecorded(placed, self._timer, **{_LEFT_OUT[flaw]: None})

    def _launch(self, staged: list[Any]) -> None:
        if self._flaw == "inputs of the recording":
            staged = [one._replace(tensors=self._slots[0].tensors) for one in staged]
        if self._flaw == "one rate for all updates of a launch":
            staged = [one._replace(rates=staged[0].rates) for one in staged]
        if self._flaw == "inputs of a launch exchanged":
            tensors = [one.tensors for one in reversed(staged)]
            staged = [one._replace(tensors=t) for one, t in zip(staged, tensors, strict=True)]
        scale = self._scaler.state_dict() if self._scaler is not None else None
        super()._launch(staged)
        if self._flaw == "replayed twice":
            self._recorded[len(staged)].replay()
        if self._flaw == "scale frozen in the graph" and scale is not None:
            self._scaler.load_state_dict(scale)

    def flush(self) -> None:
        if self._flaw == "the rest never launched":
            self._staged = []
        super().flush()

    def _record(self) -> None:
        super()._record()
        if self._flaw == "recording carried out":
            self._recorded[1].replay()


class _FrozenRates(DeviceLr):
    """The rate at capture stays forever: the optimizer reads Python's number."""

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[None]:
        yield


class _Recordable(FlawedStep):
    """A flawed step of the kind that is captured."""

    has_begun = False

    def forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


# Inside a graph these are easier made, and not seen from outside.
_FLAWS_OF_STEPS = {
    "gradients overwritten in the graph": "gradients overwritten",
    "gradients not set to zero in the graph": "gradients not set to zero",
    "gradients not unscaled in the graph": "gradients not unscaled",
}


_LEFT_OUT = {
    "average left out of the graph": "average",
    "not clipped in the graph": "clip_norm",
}


class _AsRecorded:
    """A step that is correct while it warms up, and flawed when it is captured."""

    has_begun = False

    def __init__(self, parts: StepParts, timer: StepTimer, **changes: Any) -> None:
        self._whole = EagerStep(parts, timer)
        self._flawed = EagerStep(replace(parts, **changes), timer)

    def run(self, update: list[MicroBatch]) -> Tensor:
        is_recording = _get_current_dispatch_mode() is not None
        return (self._flawed if is_recording else self._whole).run(update)

    def forget(self) -> None:
        self._whole.forget()


def captured(flaw: str = "", spoil: Callable[[Session], Any] | None = None) -> Maker:
    """A maker of correct sessions, whose updates are captured with a flaw."""

    def begin(experiment: Experiment, seed: int, device: str, recipe: Recipe) -> Session:
        session = Session(build(experiment, seed, device), recipe)
        if spoil is not None:
            spoil(session)
        return session

    def step(session: Session) -> Any:
        is_captured = session.recipe.capture.value == "step"
        return FlawedCapture(session, flaw) if is_captured else make_step(session)

    return Maker(begin=begin, step=step)
