"""The steps that are profiled: made as a training makes them, one at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch

from flatout.engine.experiment import Experiment
from flatout.engine.feed.cached_feed import CachedFeed
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.model.precision import check_layers, check_precision
from flatout.engine.profile.step_plan import stretched
from flatout.engine.profile.trace import mark
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import BuiltExperiment, Session, build
from flatout.engine.session.step_kinds import new_step
from flatout.engine.tuner.ab_timing import stepped
from flatout.errors import UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.recipe import Choice, Recipe
from flatout.system.clock import elapsed_s

# The first makes the optimizer's state, the second prepares its kernel, the third is as all others.
_LEAST_WARM_UPS, _WARM_UP_S = 3, 0.5


def built_for(
    experiment: Experiment,
    spec: ExperimentSpec,
    fields: Mapping[str, Choice[Any]] | None = None,
    train_data: Any = None,
) -> tuple[BuiltExperiment, Recipe, list[Finding]]:
    """An experiment's objects, the recipe for them, and what a training would warn of.

    Args:
        experiment: what is built.
        spec: its seed and length, and the fields that the user has set.
        fields: others, that a search has found.
        train_data: what its factory has given before.

    Raises:
        UsageError: the recipe cannot be carried out here.
    """
    experiment = dataclasses.replace(
        experiment,
        validation_data=None,
        early_stop=None,
        schedule=experiment.schedule if experiment.schedule_every == "step" else None,
    )
    fields = fields or {}
    device_name = fields["device"].value if "device" in fields else spec.fixed.get("device")
    built = build(experiment, spec.seed, device_name, train_data)
    built = dataclasses.replace(built, length=(spec.epochs, spec.steps))
    recipe = msgspec.structs.replace(built.recipe(spec.fixed), **fields)
    check_precision(recipe.precision.value, built.device)
    check_layers(recipe.precision.value, built.model, built.device)
    built.optimizers.check_implementation(
        recipe.optimizer_implementation.value, can_be_fused=built.facts.can_be_fused
    )
    return built, recipe, list(check_recipe(recipe, built.facts))


def session_of(built: BuiltExperiment, recipe: Recipe) -> Session:
    """The session; samples that are kept are read now, as they are after a first epoch."""
    session = Session(built, recipe)
    if isinstance(session.feed, CachedFeed):
        session.feed.fill()
    return session


class MarkingTimer(StepTimer):
    """A step timer that also marks the ends of a step's parts in a running profile.

    is_marking: whether it does.
    """

    is_marking = False

    def mark(self, part: str) -> None:
        """See StepTimer."""
        super().mark(part)
        if self.is_marking:
            mark(part)


class StepLoop:
    """Makes steps, epoch after epoch, without validation.

    newest: the micro-batches of the last step. num_samples: of all steps.

    Args:
        session: live objects under a recipe, whose process settings are on.
        timer: notified of each part of a step.
    """

    def __init__(self, session: Session, timer: StepTimer) -> None:
        self._session = session
        self._timer = timer
        self._step = new_step(session, timer)
        self._updates: Iterator[Any] = iter(())
        self._is_scheduled = session.learning_rates.are_per_step
        self.newest: list[MicroBatch] = []
        self.num_samples = 0
        session.model.train()

    def make(self) -> None:
        """Makes one step.

        Raises:
            UsageError: no-data.
        """
        update = next(self._updates, None)
        if update is None:
            position = self._session.position
            self._updates = self._session.feed.updates(position.epoch, 0)
            position.epoch += 1
            update = next(self._updates, None)
        if not update:
            raise UsageError(
                "no-data",
                "the training data has no samples.",
                fix="check what `train_data()` returns",
            )
        self._timer.mark("data")
        self.newest = update
        self._step.run(update)
        self._session.position.step += 1
        self.num_samples += sum(size for _, size in update)
        if self._is_scheduled:
            self._is_scheduled = stepped(self._session.learning_rates.after_update)
        self._timer.mark("other")

    def finish(self) -> None:
        """Makes what was laid aside, and waits for the device."""
        self._step.flush()
        if self._session.device.type == "cuda":
            torch.cuda.synchronize(self._session.device)

    def warm_up(self) -> None:
        """Makes some steps that count for nothing."""
        began_s = elapsed_s()
        number = 0
        while number < _LEAST_WARM_UPS or elapsed_s() - began_s < _WARM_UP_S:
            self.make()
            number += 1
        self.finish()

    def timed(self, num_steps: int) -> list[float]:
        """Seconds of each of so many steps; on a GPU by its own clock, which the host runs ahead.

        Together they are as long as it takes by the host's clock.
        """
        self._timer.mark("other")
        self.finish()
        began_s = elapsed_s()
        if self._session.device.type == "cuda":
            times_s = self._timed_on_device(num_steps)
            return stretched(times_s, elapsed_s() - began_s)
        times_s = []
        for _ in range(num_steps):
            before_s = elapsed_s()
            self.make()
            times_s.append(elapsed_s() - before_s)
        self.finish()
        return times_s

    def _timed_on_device(self, num_steps: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(num_steps + 1)]
        events[0].record()
        for event in events[1:]:
            self.make()
            event.record()
        self.finish()
        pairs = zip(events, events[1:], strict=False)
        return [before.elapsed_time(after) / 1e3 for before, after in pairs]
