"""The training loop: one stretch of steps under one recipe.

Epochs of updates; after each update, whatever is due: schedule, validation, checkpoint, a line of
metrics. Nothing here waits for the device except where a number is needed on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from flatout.engine.custom_step import CustomStep
from flatout.engine.evaluation import Validator
from flatout.engine.feed import MicroBatch
from flatout.engine.journal import Journal
from flatout.engine.memory import MemoryCap
from flatout.engine.meter import Meter
from flatout.engine.reporter import Reporter
from flatout.engine.saver import Saver, Snapshot
from flatout.engine.session import Session
from flatout.engine.state import pack
from flatout.engine.step import Step
from flatout.engine.watch import StopRequest
from flatout.engine.weights import weights_metadata
from flatout.errors import RunFailed, UsageError
from flatout.nouns.finding import Finding, Fix

Ending = Literal["finished", "early", "stopped", "recipe"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where a stretch ends: after so many epochs or steps, or where the recipe changes."""

    epochs: int | None
    steps: int | None
    recipe_changes_at: int | None = None

    def are_reached(self, epoch: int, step: int) -> bool:
        """Whether the run's end has come."""
        if self.steps is not None:
            return step >= self.steps
        return self.epochs is not None and epoch >= self.epochs


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What is not of the training itself: where it tells, saves and hears, and what it may take
    of the GPU.
    """

    journal: Journal
    saver: Saver
    meter: Meter
    request: StopRequest
    cap: MemoryCap | None = None


class Loop:
    """Trains a session until its limits, a request to stop, or an error.

    Args:
        session: what is trained.
        limits: where it ends.
        around: where it tells, saves and hears.
    """

    def __init__(self, session: Session, limits: Limits, around: Surroundings) -> None:
        self._session = session
        self._limits = limits
        self._saver = around.saver
        self._meter = around.meter
        self._journal = around.journal
        self._request = around.request
        parts = session.step_parts()
        make_step = Step if session.experiment.step is None else CustomStep
        self._step = make_step(parts, around.meter)
        self._reporter = Reporter(session, around.journal, around.meter, around.cap)
        self._validator = Validator(session, around.journal)
        experiment = session.experiment
        every = experiment.validate_every
        self._validate_every = every if isinstance(every, int) else None
        self._is_first_update = True

    def run(self) -> Ending:
        """Trains; when it returns, everything is told, and saved or being saved."""
        position = self._session.position
        self._session.model.train()
        ending: Ending | None = None
        while ending is None and not self._limits.are_reached(position.epoch, position.step):
            ending = "early" if self._validator.is_patience_over() else self._epoch()
        if ending is None:
            ending = "finished"
            self._validate()
        self._save(is_last=True)
        return ending

    def _epoch(self) -> Ending | None:
        """Trains to the end of the epoch, or to whatever ends the stretch before."""
        position = self._session.position
        updates = self._session.feed.updates(position.epoch, position.update)
        while not self._limits.are_reached(position.epoch, position.step):
            update = self._next(updates)
            if update is None:
                self._end_epoch()
                return None
            self._update(update)
            ending = self._after_update()
            if ending is not None:
                return ending
        return None

    def _next(self, updates: Iterator[list[MicroBatch]]) -> list[MicroBatch] | None:
        """The next update's micro-batches. If reading fails, what was trained is saved first.

        Not where the data has a state of its own: that is already in the midst of what failed.
        """
        try:
            update = next(updates, None)
        except Exception:
            if self._session.feed.state() is None:
                self._save()
                self._saver.finish()
            raise
        self._meter.mark("data")
        return update

    def _update(self, update: list[MicroBatch]) -> None:
        session, position = self._session, self._session.position
        self._meter.begin_step()
        loss = self._step.run(update)
        num_samples = update[0][1] if len(update) == 1 else sum(size for _, size in update)
        position.step += 1
        position.update += 1
        position.num_samples_seen += num_samples
        if session.learning_rates.are_per_step:
            session.learning_rates.after_update()
        if self._is_first_update:
            # By now the optimizer has its state: what cannot be stored is refused at once.
            self._saver.expect_size(pack(session.state(), is_copied=False).num_bytes)
            if session.activations is not None and session.activations.is_without_effect():
                self._journal.warn(position.step, _unused_checkpointing())
            self._is_first_update = False
        self._reporter.add(loss, num_samples)

    def _after_update(self) -> Ending | None:
        step = self._session.position.step
        if self._validate_every is not None and step % self._validate_every == 0:
            self._validate()
            if self._validator.is_patience_over():
                return "early"
        if self._saver.is_due(step):
            self._save()
        if self._limits.recipe_changes_at == step:
            return "recipe"
        if self._request.reason is not None:
            return "stopped"
        self._meter.mark("other")
        return None

    def _end_epoch(self) -> None:
        session, position = self._session, self._session.position
        if position.update == 0:
            raise UsageError(
                "no-data",
                "the train data gave no samples.",
                fix="check what `train_data()` returns",
            )
        self._reporter.end_epoch()
        if self._validate_every is None:
            self._validate()
        session.learning_rates.after_epoch(position.last_value)
        position.epoch += 1
        position.update = 0
        self._meter.mark("other")

    def _validate(self) -> None:
        self._reporter.tell(is_waiting=True)
        self._meter.mark("other")
        self._validator.validate()
        self._meter.mark("validation")

    def _save(self, *, is_last: bool = False) -> None:
        """Saves the state after the last update, in the background; never one with NaN in it."""
        self._reporter.tell(is_waiting=True, is_last=is_last)
        if not self._session.has_finite_weights():
            raise _nonfinite_weights(self._session.position.step)
        for line in self._saver.take_written():
            self._journal.event(line)
        self._meter.mark("other")
        self._saver.save(lambda: self._snapshot(is_last))
        self._meter.mark("checkpoint")

    def _snapshot(self, is_last: bool) -> Snapshot:
        state = self._session.state()
        state["split_s"] = self._meter.split_s()
        state["metrics_bytes"] = self._journal.metrics_bytes()
        weights = self._validator.take_best()
        if is_last and self._session.validation_feed is None:
            weights = self._validator.weights()
        return Snapshot(
            step=self._session.position.step,
            packed=pack(state),
            weights=weights,
            weights_metadata=weights_metadata(self._session, weights) if weights else {},
        )


def _unused_checkpointing() -> Finding:
    return Finding(
        rule="setting-without-effect",
        severity="warning",
        problem="`activation_checkpointing` has no effect here.",
        because="the model does not call its repeated blocks, as in `block(hidden)`",
        fixes=(Fix(text="leave --use activation_checkpointing out"),),
    )


def _nonfinite_weights(step: int) -> RunFailed:
    return RunFailed(
        "nonfinite-weights",
        f"after step {step:,} some weights are NaN or infinite.",
        because="a gradient was, although the loss was a finite number",
        fix="lower the learning rate or set clip_norm, and look for divisions, roots and "
        "logarithms near 0; the last checkpoint is from before",
    )
