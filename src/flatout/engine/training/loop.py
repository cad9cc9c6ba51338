"""The training loop: one segment of steps under one recipe.

Epochs of updates; after each update, whatever is due: schedule, validation, checkpoint, a line of
metrics. Nothing here waits for the device except where a number is needed on the host.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from flatout.engine.gate.batch_splitting import Training, why_not_split
from flatout.engine.model.late_buffers import check_is_taken_back
from flatout.engine.progress import TrainState
from flatout.engine.ranks.process_group import loss_in
from flatout.engine.ranks.protocol import StepRequests
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runtime.gpu_memory import MemoryCap
from flatout.engine.runtime.oom import OutOfMemory, as_out_of_memory
from flatout.engine.runtime.rng import generator_states
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.session import Session
from flatout.engine.session.state import own_state_of, state_of
from flatout.engine.session.validation import Validator
from flatout.engine.tensors.state_tree import Packed, pack
from flatout.engine.training.async_checkpoint import AsyncCheckpointer, NoCheckpointer, Snapshot
from flatout.engine.training.hook_rounds import HookRounds
from flatout.engine.training.metrics_log import MetricsLog, RankLog
from flatout.engine.training.oom_recovery import OomRecovery, oom_options_of
from flatout.engine.training.shard_loss_check import split_check_limit_s
from flatout.engine.training.updater import Rollback, StepRunner, UpdateResult, agreed, await_device
from flatout.engine.training.weights_file import weights_metadata
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import Finding, Fix
from flatout.system.run_recorder import RunRecorder
from flatout.system.store.run_folder import RunFolder

# `back`: the run is to continue from its last checkpoint, under a recipe that takes less memory.
Ending = Literal["finished", "early", "stopped", "recipe", "back"]


@dataclass(frozen=True, kw_only=True)
class LoopLimits:
    """The end of a segment: after so many epochs or steps, or where the recipe changes."""

    epochs: int | None
    steps: int | None
    recipe_changes_at: int | None = None

    def are_reached(self, epoch: int, step: int) -> bool:
        """Whether the run's end has come."""
        if self.steps is not None:
            return step >= self.steps
        return self.epochs is not None and epoch >= self.epochs


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """The loop's environment: where it logs, saves and gets requests, and what it may take
    of the GPU.

    recorder: of the machine; None on ranks that log nothing.
    """

    folder: RunFolder
    event_log: EventLog
    saver: AsyncCheckpointer | NoCheckpointer
    timer: StepTimer
    request: StopRequest
    hooks: HookRounds
    cap: MemoryCap | None = None
    recorder: RunRecorder | None = None


class Loop:
    """Trains a session until its limits, a request to stop, or an error.

    Args:
        session: what is trained.
        limits: where it ends.
        context: where it logs, saves and gets requests.
    """

    def __init__(self, session: Session, limits: LoopLimits, context: LoopContext) -> None:
        self._session = session
        self._limits = limits
        self._saver = context.saver
        self._timer = context.timer
        self._event_log = context.event_log
        self._request = context.request
        self._hooks = context.hooks
        step = session.position.step
        ranks = session.ranks
        oom_options = oom_options_of(session.facts, ranks.size)
        training = Training(
            experiment=session.experiment,
            seed=session.seed,
            device=session.device,
            data=session.train_data,
            num_parameters=session.facts.num_parameters,
            limit_s=split_check_limit_s(ranks),
        )
        check_split = functools.partial(why_not_split, training)
        self._oom_recovery = OomRecovery(context.event_log, oom_options, step, ranks, check_split)
        self._reporter: MetricsLog | RankLog
        if ranks.is_first:
            self._reporter = MetricsLog(
                session, context.event_log, context.timer, context.cap, context.recorder
            )
        else:
            path = context.folder.rank_times(ranks.rank)
            self._reporter = RankLog(path, ranks.rank, context.timer)
        requests = functools.partial(_requests, context, self._reporter)
        self._runner = StepRunner(session, context.timer, self._oom_recovery, requests)
        self._flop_count = self._runner.flop_count
        self._validator = Validator(session, context.event_log)
        experiment = session.experiment
        every = experiment.validate_every
        self._validate_every = every if isinstance(every, int) else None
        self._is_first_update = self._is_first_hook = True
        self._has_warned_of_lost = False

    def run(self) -> Ending:
        """Trains; when it returns, everything is logged, and saved or being saved.

        Raises:
            RunFailed: out-of-memory, gpu-state-lost.
        """
        try:
            return self._trained()
        except Rollback:
            return "back"
        except Exception as error:
            oom = as_out_of_memory(error)
            if oom is None:
                self._oom_recovery.lost_elsewhere(error, self._session.position.step)
                lost = loss_in(self._session.ranks, error)
                if lost is not None:
                    raise lost from error
                raise
        # Between two updates: it is unknown how much of the work is done.
        await_device(self._session, self._oom_recovery, oom)
        try:
            agreed(self._session, self._oom_recovery, oom, "other", can_repeat=False)
        except Rollback:
            return "back"
        raise AssertionError("an update that cannot be repeated is rolled back")

    def _trained(self) -> Ending:
        position = self._session.position
        self._session.model.train()
        self._hooks.write()
        if _is_validation_missing(position, self._validate_every):
            self._validate()
            self._hooks.after_validation(self._validator.take_metrics(), self._runner.renew)
        ending: Ending | None = None
        while ending is None and not self._limits.are_reached(position.epoch, position.step):
            ending = "early" if self._validator.is_patience_over() else self._hooks.ending()
            ending = ending or self._epoch()
        if ending is None:
            ending = "finished"
            self._validate()
            self._hooks.after_validation(self._validator.take_metrics(), self._runner.renew)
        self._save(is_last=True)
        return ending

    def _epoch(self) -> Ending | None:
        """Trains to the end of the epoch, or to whatever ends the segment before."""
        position = self._session.position
        self._runner.begin_epoch()
        while not self._limits.are_reached(position.epoch, position.step):
            made = self._make_update()
            if made is None:
                self._end_epoch()
                return None
            self._count(*made)
            ending = self._after_update(made[0])
            if ending is not None:
                return ending
        return None

    def _make_update(self) -> UpdateResult | None:
        """Makes the next update. If its data cannot be read, what was trained is saved first.

        Not where the data has a state of its own: that is already in the middle of what failed.
        """
        position = self._session.position
        try:
            while isinstance(made := self._runner.make(), OutOfMemory):
                if position.step and not position.update:
                    # The epoch before was validated under the recipe before, and a resume from an
                    # earlier checkpoint would do it under the new one.
                    self._save(is_waiting=True)
                self._runner.take_less(made)
            return made
        except Rollback:
            raise
        except Exception as error:
            # Of several ranks the others know nothing of it, and a checkpoint is made by all.
            can_save = self._session.ranks.size == 1 and not _is_gpu_lost(error)
            if can_save and self._runner.is_whole and self._session.feed.state() is None:
                self._save(is_waiting=True)
            raise

    def _count(self, loss: Tensor | dict[str, Tensor], num_samples: int) -> None:
        session, position = self._session, self._session.position
        position.step += 1
        position.update += 1
        position.num_samples_seen += num_samples
        if session.learning_rates.are_per_step:
            session.learning_rates.after_update()
        session.check_groups()
        if self._is_first_update:
            # By now the optimizer has its state: what cannot be stored is refused now.
            check_is_taken_back(session.model, session.built_forms)
            own = pack(own_state_of(session), is_copied=False)
            num_parts = session.ranks.size if session.sharding is not None else 1
            self._saver.expect_size(own.num_bytes * num_parts)
            if session.activations is not None and session.activations.is_without_effect():
                self._event_log.warn(position.step, _unused_checkpointing())
            self._runner.detect_changes()
            self._is_first_update = False
        self._reporter.add(loss, num_samples)
        if self._reporter.is_due():
            self._runner.flush()
            self._reporter.report()

    def _after_update(self, loss: Tensor | dict[str, Tensor]) -> Ending | None:
        step = self._session.position.step
        if self._hooks.are_per_step:
            self._runner.flush(is_waiting=True)
            self._hooks.after_step(loss, self._runner.renew)
            if self._is_first_hook:
                # What the first call changes is copied before each batch from now on. Reading all
                # attributes after each call would cost as much as a small step.
                self._runner.detect_changes()
                self._is_first_hook = False
        if self._validate_every is not None and step % self._validate_every == 0:
            is_adapted = self._validate()
            self._hooks.after_validation(self._validator.take_metrics(), self._runner.renew)
            if is_adapted:
                # Logged under a recipe that holds only from the next step.
                self._save(is_waiting=True)
            if self._validator.is_patience_over():
                return "early"
        requests = self._runner.heard()
        if requests.is_save_due:
            self._save()
        if requests.has_moved:
            moved, self._reporter.moved = self._reporter.moved, None
            self._runner.speed_up(moved or OutOfMemory(part="pace", because="reported by rank 0"))
        ending: Ending | None = self._hooks.ending() if self._hooks.are_there else None
        if ending is not None:
            return ending
        if self._limits.recipe_changes_at == step:
            return "recipe"
        if requests.stop is not None:
            self._request.make(requests.stop)
            return "stopped"
        self._timer.mark("other")
        return None

    def _end_epoch(self) -> None:
        session, position = self._session, self._session.position
        if position.update == 0:
            raise UsageError(
                "no-data",
                "the training data has no samples.",
                fix="check what `train_data()` returns",
            )
        self._runner.flush(is_waiting=True)
        self._reporter.end_epoch()
        if self._validate_every is None:
            self._validate()
        session.learning_rates.after_epoch(position.last_value)
        session.check_groups()
        position.epoch += 1
        position.update = 0
        self._hooks.after_validation(self._validator.take_metrics(), self._runner.renew)
        self._hooks.after_epoch(self._runner.renew)
        self._timer.mark("other")

    def _validate(self) -> bool:
        """Validates; gives whether that took a recipe with less memory."""
        is_adapted = False
        self._runner.flush(is_waiting=True)
        self._reporter.report(is_waiting=True)
        self._timer.mark("other")
        try:
            while (oom := self._try_to_validate()) is not None:
                self._runner.take_less(oom)
                is_adapted = True
        except Rollback:
            raise
        except Exception as error:
            # What was trained so far is not lost by a mistake in the validation. (Of several ranks
            # the others may know nothing of it, and a checkpoint is made by all.)
            if self._session.ranks.size == 1 and not _is_gpu_lost(error):
                with contextlib.suppress(FlatoutError):
                    self._save(is_waiting=True)
            raise
        self._runner.settle()
        self._timer.mark("validation")
        return is_adapted

    def _try_to_validate(self) -> OutOfMemory | None:
        """Validates; returns an out-of-memory error that was not yet logged, if any."""
        position = self._session.position
        try:
            self._validator.validate()
            return None
        except Exception as error:
            oom = as_out_of_memory(error)
            if oom is None or position.validated_step == position.step:
                raise
        can_repeat = self._session.sharding is None
        return agreed(self._session, self._oom_recovery, oom, "validation", can_repeat=can_repeat)

    def _save(self, *, is_last: bool = False, is_waiting: bool = False) -> None:
        """Saves the state after the last update, in the background; never one with NaN in it.

        Args:
            is_last: nothing comes after it.
            is_waiting: it is on the disk when this returns.

        Raises:
            RunFailed: nonfinite-weights.
            UsageError: state-cannot-be-taken-back.
        """
        self._runner.flush(is_waiting=True)
        self._reporter.report(is_waiting=True, is_last=is_last)
        if not self._session.has_finite_weights():
            raise _nonfinite_weights(self._session.position.step)
        self._flop_count.log(self._event_log, self._timer, is_last=is_last)
        # A checkpoint that no resume can take would replace those that one can.
        check_is_taken_back(self._session.model, self._session.built_forms)
        for line in self._saver.take_written():
            self._event_log.event(line)
        self._runner.detect_changes()
        if not self._has_warned_of_lost:
            self._has_warned_of_lost = _has_warned_of_lost(self._session, self._event_log)
        self._timer.mark("other")
        own = generator_states(self._session.device)
        states = self._session.ranks.all_gather(own, about="generators")
        whole = None
        if self._session.sharding is not None:
            # Not while the checkpoint before is in memory, too.
            self._saver.finish()
            whole = _put_together(self._session, self._validator, is_last=is_last)
        self._saver.save(lambda is_copied: self._snapshot(is_last, is_copied, states[1:], whole))
        if is_waiting:
            self._saver.finish()
        self._timer.mark("checkpoint")

    def _snapshot(
        self,
        is_last: bool,
        is_copied: bool,
        others: list[Any],
        whole: tuple[dict[str, Any], Packed | None] | None,
    ) -> Snapshot:
        state = state_of(self._session) if whole is None else dict(whole[0])
        if others:
            state["generators_of_others"] = others
        state["split_s"] = self._timer.split_s()
        state["metrics_bytes"] = self._event_log.metrics_bytes()
        # First, because it may fail: what is taken below is taken only once.
        packed = pack(state, is_copied=is_copied and whole is None)
        weights = self._validator.take_best()
        if is_last and self._session.validation_feed is None:
            weights = self._validator.weights() if whole is None else whole[1]
        return Snapshot(
            step=self._session.position.step,
            packed=packed,
            weights=weights,
            weights_metadata=weights_metadata(self._session, weights) if weights else {},
        )


def _is_gpu_lost(error: Exception) -> bool:
    """Whether nothing that this process would read from its GPU can be relied on."""
    return isinstance(error, RunFailed) and error.rule == "gpu-state-lost"


def _is_validation_missing(position: TrainState, every: int | None) -> bool:
    """Whether the run was saved because the validation after this step has failed."""
    is_due = every is not None and position.step > 0 and position.step % every == 0
    return is_due and position.validated_step != position.step


def _put_together(
    session: Session, validator: Validator, *, is_last: bool
) -> tuple[dict[str, Any], Packed | None]:
    """State and last weights of a model that is spread over ranks, which all do this."""
    needs_weights = is_last and session.validation_feed is None
    return state_of(session), validator.weights() if needs_weights else None


def _requests(context: LoopContext, reporter: MetricsLog | RankLog, step: int) -> StepRequests:
    """This rank's requests after that many updates."""
    return StepRequests(
        stop=context.request.reason,
        is_save_due=context.saver.is_due(step),
        has_moved=reporter.moved is not None,
    )


def _unused_checkpointing() -> Finding:
    return Finding(
        rule="setting-without-effect",
        severity="warning",
        problem="`activation_checkpointing` has no effect here.",
        because="the model does not call its repeated blocks as `block(hidden)`",
        fixes=(Fix(text="leave --use activation_checkpointing out"),),
    )


def _has_warned_of_lost(session: Session, event_log: EventLog) -> bool:
    """Warns of model state that checkpoints do not contain; returns whether there is any."""
    names = session.attributes.lost()
    if names:
        event_log.warn(session.position.step, _not_in_checkpoints(names))
    return bool(names)


def _not_in_checkpoints(names: list[str]) -> Finding:
    shown = ", ".join(f"`{name}`" for name in names[:3]) + (", ..." if len(names) > 3 else "")
    return Finding(
        rule="state-outside-of-checkpoint",
        severity="warning",
        problem=f"the model changes {shown}, which checkpoints do not contain: a resumed run "
        "starts from its initial value.",
        because="of plain attributes, checkpoints contain only numbers, strings, lists and dicts "
        "of these, and tensors of up to 64 MiB in total",
        fixes=(Fix(text="keep it in a buffer: self.register_buffer(name, tensor)"),),
    )


def _nonfinite_weights(step: int) -> RunFailed:
    return RunFailed(
        "nonfinite-weights",
        f"after step {step:,} some weights are NaN or infinite.",
        because="a gradient was not finite, although the loss was",
        fix="lower the learning rate or set clip_norm, and look for divisions, roots and "
        "logarithms near 0; the last checkpoint is from before this step",
    )
