"""Which kind of step a session makes its updates with."""

from __future__ import annotations

from flatout.engine.capture import CapturedStep
from flatout.engine.custom_step import CustomStep
from flatout.engine.meter import Meter
from flatout.engine.session import Session
from flatout.engine.step import Step

AnyStep = Step | CapturedStep | CustomStep


def new_step(session: Session, meter: Meter) -> AnyStep:
    """A step as the session's recipe says: the experiment's own, in graphs, or one by one."""
    parts = session.step_parts()
    if session.experiment.step is not None:
        return CustomStep(parts, meter)
    return shared_step(session, meter)


def shared_step(session: Session, meter: Meter) -> Step | CapturedStep:
    """The same for an experiment without a step of its own."""
    parts = session.step_parts()
    if session.graphs is None or session.recipe.capture.value == "off":
        return Step(parts, meter)
    return CapturedStep(parts, meter, session.graphs, session.recipe.steps_per_launch.value)
