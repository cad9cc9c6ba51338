"""The kind of step that a session uses for its updates."""

from __future__ import annotations

from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session
from flatout.engine.step.captured_step import CapturedStep
from flatout.engine.step.custom_step import CustomStep
from flatout.engine.step.step import EagerStep

AnyStep = EagerStep | CapturedStep | CustomStep


def new_step(session: Session, timer: StepTimer) -> AnyStep:
    """A step as the session's recipe says: the experiment's own, in graphs, or one by one."""
    parts = session.step_parts()
    if session.experiment.step is not None:
        return CustomStep(parts, timer)
    return shared_step(session, timer)


def shared_step(session: Session, timer: StepTimer) -> EagerStep | CapturedStep:
    """The same for an experiment without a step of its own."""
    parts = session.step_parts()
    if session.graphs is None or session.recipe.capture.value == "off":
        return EagerStep(parts, timer)
    return CapturedStep(parts, timer, session.graphs, session.recipe.steps_per_launch.value)
