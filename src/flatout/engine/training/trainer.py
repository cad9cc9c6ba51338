"""A run's course: segments of training, one after another, each under one recipe."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
from torch import nn

from flatout.engine.experiment import Experiment
from flatout.engine.gate.batch_splitting import Training, why_not_split
from flatout.engine.model.precision import check_precision, check_repeatable
from flatout.engine.ranks.meta_device_build import has_no_memory
from flatout.engine.ranks.model_layout import ModelLayout
from flatout.engine.ranks.protocol import ALONE, RankGroup
from flatout.engine.recipe.default_recipe import changed_recipe, shared_workers, threads
from flatout.engine.recipe.experiment_facts import restored_device
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runlog.history import History
from flatout.engine.runlog.progress_echo import Echo
from flatout.engine.runtime import rng
from flatout.engine.runtime.device import chosen_device
from flatout.engine.runtime.gpu_memory import (
    MemoryCap,
    lower_priority,
    release_memory,
    reserved_memory_finding,
    room_on,
)
from flatout.engine.runtime.step_timer import StepTimer, peak_allocated_bytes, peak_memory_bytes
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.pinned_memory import pinning_problem, with_pinning_tried
from flatout.engine.session.session import BuiltExperiment, Session, build, process_settings
from flatout.engine.session.state import forget_tensors, own_state_of, state_of, take_over
from flatout.engine.tensors.state_tree import pack, unpack
from flatout.engine.training.async_checkpoint import AsyncCheckpointer, NoCheckpointer
from flatout.engine.training.changed_experiment import (
    adopt,
    check_fit,
    fits_of,
    has_other_file,
    other_data,
)
from flatout.engine.training.checkpoints import shared_checkpoint
from flatout.engine.training.flop_count import counted_alone
from flatout.engine.training.hook_rounds import HookRounds
from flatout.engine.training.loop import Ending, Loop, LoopContext, LoopLimits
from flatout.engine.training.oom_recovery import oom_options_of, relieved_after_kill
from flatout.engine.training.run_checks import (
    are_other_ranks,
    busy_cpus_finding,
    check_ranks,
    ignored_fields_finding,
    inexact,
    not_searched,
    of_ranks,
    started,
)
from flatout.engine.training.run_length import check_schedule, limits_of, run_is_finished
from flatout.engine.training.sanity_check import check_before_search, check_validation
from flatout.engine.training.shard_loss_check import check_shares, split_check_limit_s
from flatout.engine.training.weights_file import init_weights, keep_weights
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.code_outline import outline
from flatout.engine.tuner.driver import Search, tuned_recipe
from flatout.errors import FlatoutError
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding, Fix
from flatout.schema.recipe import Recipe
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import (
    Event,
    Extended,
    Finished,
    Outlined,
    Profiled,
    RecipeSet,
    Stopped,
)
from flatout.system import atomic_files
from flatout.system.clock import elapsed_s, now_s
from flatout.system.load import LoadWatch
from flatout.system.run_recorder import RunRecorder
from flatout.system.store.run_folder import RunFolder
from flatout.tune.memory import ReservedMemory


@dataclass(frozen=True)
class TrainTask:
    """A training: its run, this rank, its changes, and the ends of its signals and lines.

    is_alone: the process is the run's own, and may be kept from what others need.
    ranks: those that train it together; this process is one of them.
    text: of the changed file that the run resumes with.
    """

    folder: RunFolder
    spec: ExperimentSpec
    change: Change
    request: StopRequest
    echo: Echo | None = None
    is_alone: bool = False
    ranks: RankGroup = ALONE
    text: bytes | None = None


class Trainer:
    """Takes a run from its state to its end, or to where it is stopped.

    Args:
        task: which run.
        experiment: what is trained.
        event_log: where it is logged.
        state: of the last checkpoint; None at the beginning.
    """

    def __init__(
        self, task: TrainTask, experiment: Experiment, event_log: EventLog, state: Any
    ) -> None:
        self._task = task
        self._experiment = experiment
        self._event_log = event_log
        self._state = state
        self._history = task.ranks.broadcast_from_rank0(lambda: event_log.history, History)
        self._began_s = elapsed_s()
        self._watch = LoadWatch()
        self._load_s = now_s() - psutil.Process().create_time()
        self._saver: AsyncCheckpointer | NoCheckpointer | None = None
        self._length = LoopLimits(epochs=None, steps=None)
        self._session: Session | None = None
        self._room: ReservedMemory | None = None
        self._cap: MemoryCap | None = None
        self._recorder = RunRecorder(task.folder.path) if task.ranks.is_first else None
        # What has taken the GPU from this process while it searched.
        self._lost: list[FlatoutError] = []
        # The next segment begins at a checkpoint, and what was logged since is logged again.
        self._has_gone_back = False
        self._is_taken_up = False

    @property
    def step(self) -> int:
        """Updates made so far."""
        if self._session is not None:
            return self._session.position.step
        return int(self._state["position"]["step"]) if self._state else 0

    def train(self) -> nn.Module:
        """Trains segment after segment until one ends for a reason other than a recipe change."""
        self._length = limits = self._limits()
        recipe = self._history.recipe_at(self.step)
        named = self._task.change.fixed or (self._task.spec.fixed if recipe is None else {})
        ranks = self._task.ranks
        device_name = named.get("device") or (recipe.device.value if recipe else None)
        device_name = ranks.device_name(device_name)
        previous, layout = recipe, _layout(ranks, named, recipe)
        with rng.untouched_generators(chosen_device(device_name)), restored_device():
            built = self._with_room(self._build(device_name, layout))
            emit = self._task.spec.tuning.emit
            if emit is not None and self._experiment.step is None:
                # Before the search: refuse experiments that no program can be written for.
                code_outline = outline(built, built.recipe(self._task.spec.fixed), emit)
                self._event_log.event(Outlined(at=now_s(), step=0, outline=code_outline))
                if self._experiment.hooks is not None:
                    self._event_log.warn(0, _not_emitted())
            ranks.attach(built.device)
            recipe = ranks.broadcast_from_rank0(
                lambda: self._decide_recipe(built, previous, limits), Recipe
            )
            if ranks.size > 1:
                check = functools.partial(
                    check_shares, built, recipe, self._event_log, self.step,
                    limit_s=split_check_limit_s(ranks),
                )  # fmt: skip
                ranks.broadcast_from_rank0(check, about="shares")
            self._history = ranks.broadcast_from_rank0(lambda: self._event_log.history, History)
            if self._task.spec.tuning.is_only:
                return self._only_tuned(built, recipe)
            timer = StepTimer(built.device, self._state["split_s"] if self._state else None)
            with self._recorder or contextlib.nullcontext():
                while True:
                    # What a single rank has decided may be more than several can do.
                    check_ranks(ranks, recipe, built)
                    check_repeatable(recipe, built.device)
                    with process_settings(recipe):
                        ending = self._segment(Session(built, recipe, ranks), limits, timer)
                    assert self._session is not None
                    if ending not in ("recipe", "back"):
                        self._log_end(ending, timer)
                        return self._session.model
                    # Two of them may not fit into the memory.
                    del built
                    recipe = self._turn(ending)
                    device_name = ranks.device_name(recipe.device.value)
                    layout = replace(
                        layout, requested=recipe.sharding.value, exchange=recipe.exchange.value
                    )
                    built = self._build(device_name, layout)

    def _turn(self, ending: Ending) -> Recipe:
        """The end of one segment and the beginning of the next: its state, and its recipe."""
        assert self._session is not None
        if ending == "recipe":
            packed = pack(state_of(self._session, is_for_all=True))
            self._state = unpack(packed.tree, packed.tensors)
            # Each rank continues with its own, which are where a checkpoint has them.
            own = [self._state["generators"]] * self._task.ranks.rank
            self._state["generators_of_others"] = own
        else:
            checkpoint, damaged = shared_checkpoint(self._task.folder, self._task.ranks)
            for finding in damaged:
                self._event_log.warn(self.step, finding)
            self._state = checkpoint.state if checkpoint is not None else None
        self._has_gone_back = ending == "back"
        self._session = None
        release_memory()
        self._history = self._task.ranks.broadcast_from_rank0(
            lambda: self._event_log.history, History
        )
        recipe = self._history.recipe_at(self.step)
        assert recipe is not None, "every segment has a recipe"
        return recipe

    def _with_room(self, built: BuiltExperiment) -> BuiltExperiment:
        """Leaves other programs what they need; a notebook's process is not only the run's."""
        if not self._task.is_alone:
            return built
        device, leave_free_bytes = built.device, self._task.change.leave_free_bytes
        leave_free_bytes = (
            self._task.spec.leave_free_bytes if leave_free_bytes is None else leave_free_bytes
        )
        self._room = room = room_on(device, leave_free_bytes)
        if room.is_capped:
            self._cap = MemoryCap(device, room.leave_bytes)
        if room.is_desktop:
            lower_priority()
        if room.is_desktop or room.leave_bytes:
            is_searched = self._task.spec.tuning.mode != "off" and self._state is None
            self._event_log.warn(
                self.step, reserved_memory_finding(room, device, is_searched=is_searched)
            )
        free = built.facts.free_device_bytes
        if free is None:
            return built
        facts = replace(built.facts, free_device_bytes=max(0, free - room.leave_bytes))
        return replace(built, facts=facts)

    def _build(self, device_name: str | None, layout: ModelLayout) -> BuiltExperiment:
        is_begun_with = self._state is None and self._task.spec.init is not None
        init = functools.partial(_begin_with, self._task) if is_begun_with else None
        layout = replace(layout, init=init)
        built = build(self._experiment, self._task.spec.seed, device_name, layout=layout)
        ranks = self._task.ranks
        facts = replace(built.facts, num_ranks=ranks.size, num_ranks_here=ranks.num_here)
        return replace(
            built,
            facts=facts,
            num_sharing=ranks.num_here,
            length=(self._length.epochs, self._length.steps),
            file=self._task.spec.sha256,
        )

    def _segment(self, session: Session, limits: LoopLimits, timer: StepTimer) -> Ending:
        hooks = _taken_up(self._task, session, self._event_log, self._state)
        self._session = session
        if self._saver is None:
            # What cannot be stored is refused before the first step, not at the first save.
            pack(own_state_of(session), is_copied=False)
            self._saver = NoCheckpointer()
            if session.ranks.is_first:
                every = session.recipe.checkpoint_every.value
                self._saver = AsyncCheckpointer(self._task.folder, every, timer)
            history = self._history
            for finding in (*inexact(session, history.versions), *of_ranks(session, history)):
                self._event_log.warn(self.step, finding)
            self._has_gone_back = True
            try:
                _look_ahead(self._task, session, self._event_log, is_new=self._state is None)
            except BaseException:
                # A reference to the error would keep the loader's workers alive, too.
                session.close()
                raise
            timer.mark("validation")
        if self._has_gone_back:
            # From here on nothing is refused any more: the run is taken up.
            if self._task.ranks.is_first and not self._is_taken_up:
                _keep_changes(self._task, session, self._event_log, self._history)
            self._is_taken_up = True
            self._has_gone_back = False
            self._event_log.cut_metrics(self._state["metrics_bytes"] if self._state else 0)
            begun = started(session, limits, self._task.change, resumed=self._state is not None)
            self._event_log.event(begun, is_synced=True)
        context = LoopContext(
            folder=self._task.folder,
            event_log=self._event_log,
            saver=self._saver,
            timer=timer,
            request=self._task.request,
            hooks=hooks,
            cap=self._cap,
            recorder=self._recorder,
        )
        change_at = self._history.next_change(session.position.step)
        segment = LoopLimits(epochs=limits.epochs, steps=limits.steps, recipe_changes_at=change_at)
        try:
            ending = Loop(session, segment, context).run()
        finally:
            session.close()
            # Whatever has happened: what is being written is written to its end.
            self._saver.finish()
            for line in self._saver.take_written():
                self._event_log.event(line)
        return ending

    def _limits(self) -> LoopLimits:
        """The length of the run."""
        task, epoch = self._task, int(self._state["position"]["epoch"]) if self._state else 0
        limits = limits_of(self._experiment, task.spec, self._history, task.change)
        if self._history.is_finished and limits.are_reached(epoch, self.step):
            raise run_is_finished(
                task.folder.typed, task.spec, task.change, limits, epoch, self.step
            )
        if self._history.is_finished and self._state is not None:
            # Who trains a stopped run longer wants to see whether there is more to come.
            self._state["position"] |= {"num_worse": 0, "stop_reason": None}
        return limits

    def _decide_recipe(
        self, built: BuiltExperiment, previous: Recipe | None, limits: LoopLimits
    ) -> Recipe:
        """The recipe that holds now; new decisions are on the disk before the first step."""
        fixed = self._task.change.fixed
        if previous is not None and self._task.change.is_after_kill:
            oom_options = oom_options_of(built.facts, self._task.ranks.size)
            training = Training(
                experiment=self._experiment,
                seed=built.seed,
                device=built.device,
                data=built.train_data,
                num_parameters=built.facts.num_parameters,
                limit_s=split_check_limit_s(self._task.ranks),
            )
            check_split = functools.partial(why_not_split, training)
            previous = relieved_after_kill(self._event_log, oom_options, self.step, check_split)
            self._history = self._event_log.history
        are_others = are_other_ranks(self._task.ranks, previous, self._history)
        if previous is not None and not fixed and not are_others:
            return previous
        if previous is None:
            fixed = self._task.spec.fixed | fixed
            if self._task.spec.not_fixed:
                self._event_log.warn(self.step, ignored_fields_finding(self._task.spec.not_fixed))
            recipe = self._tuned(built, fixed, built.num_updates(limits.epochs, limits.steps))
            recipe = recipe or built.recipe(fixed)
            if not self._lost:
                recipe = with_pinning_tried(recipe, built)
        else:
            if are_others:
                previous = msgspec.structs.replace(previous, num_threads=threads(built.facts))
                previous = shared_workers(previous, built.facts)
            recipe = changed_recipe(previous, fixed)
        check_ranks(self._task.ranks, recipe, built)
        # What is refused must not be in the history, or every resume would be refused.
        check_precision(recipe.precision.value, built.device)
        built.optimizers.check_implementation(
            recipe.optimizer_implementation.value, can_be_fused=built.facts.can_be_fused
        )
        findings = check_recipe(recipe, built.facts)
        if self._task.ranks.size == 1:
            findings += busy_cpus_finding(recipe, self._watch.load())
        # Samples that cannot be kept are refused here, too.
        built.caching_for(recipe)
        for finding in findings:
            self._event_log.warn(self.step, finding)
        self._event_log.event(RecipeSet(at=now_s(), step=self.step, recipe=recipe), is_synced=True)
        self._history = self._event_log.history
        if self._lost and not self._task.spec.tuning.is_only:
            # Another process continues from here: it has a recipe now.
            raise self._lost[0]
        return recipe

    def _tuned(
        self, built: BuiltExperiment, fixed: dict[str, Any], num_steps: int | None
    ) -> Recipe | None:
        """The recipe by measuring, where that is wanted and pays; None takes the defaults."""
        task, tuning = self._task, self._task.spec.tuning
        # What is iterated may be one object with a place in it, which a search would move on.
        is_unfit = self._experiment.step is not None or built.facts.data_kind == "iterable"
        if tuning.mode == "off" or (tuning.mode == "auto" and (num_steps is None or is_unfit)):
            return None
        if task.ranks.size > 1:
            # The search ran on one rank, and was interrupted before anything was decided.
            self._event_log.warn(self.step, not_searched())
            return None
        subject = TuningTask(
            experiment=self._experiment,
            seed=task.spec.seed,
            device_name=fixed.get("device"),
            fixed=fixed,
            room=self._room,
            limit_bytes=_limit_bytes(task.folder),
            pinning_problem=pinning_problem(built, built.recipe(fixed)),
        )

        def on_event(line: Event) -> None:
            if isinstance(line, Profiled) and not tuning.is_only:
                # From here on it takes a while: report a mistake in the validation first.
                check_before_search(self._experiment, task.spec.seed, fixed, built.train_data)
            self._event_log.event(line)

        search = Search(
            subject=subject,
            options=tuning,
            num_steps=num_steps,
            request=task.request,
            on_event=on_event,
            # A notebook's experiment is nowhere that another process could load it from.
            folder=None if task.echo is not None else task.folder.path,
            load_s=self._load_s,
            lose=None if task.echo is not None else self._lost.append,
        )
        return tuned_recipe(search)

    def _only_tuned(self, built: BuiltExperiment, recipe: Recipe) -> nn.Module:
        """The ending of a run with nothing to train."""
        atomic_files.write_json(self._task.folder.recipe, recipe)
        spent_s = elapsed_s() - self._began_s
        with process_settings(recipe):
            counted = counted_alone(built, recipe, spent_s)
        if counted is not None:
            self._event_log.event(counted)
        finished = Finished(
            at=now_s(), step=0, train_s=0.0, split_s={"tuning": spent_s}, num_samples_seen=0
        )
        self._event_log.event(finished, is_synced=True)
        return built.model

    def _log_end(self, ending: Ending, timer: StepTimer) -> None:
        assert self._session is not None and self._saver is not None
        if ending == "stopped":
            reason = self._task.request.reason or "asked to stop"
            stopped = Stopped(at=now_s(), step=self.step, reason=reason)
            self._event_log.event(stopped, is_synced=True)
            return
        split_s = timer.split_s()
        patience = self._experiment.early_stop
        best = self._experiment.best
        finished = Finished(
            at=now_s(),
            step=self.step,
            train_s=sum(split_s.values()),
            split_s=split_s,
            num_samples_seen=self._session.position.num_samples_seen,
            peak_memory_bytes=peak_memory_bytes(self._session.device),
            peak_allocated_bytes=peak_allocated_bytes(self._session.device),
            checkpoint_share=self._saver.cost_s / max(elapsed_s() - self._began_s, 1e-9),
            reason=self._session.position.stop_reason
            or f"early stopping: {best} has not improved for {patience} validations"
            if ending == "early"
            else None,
            is_schedule_over=self._session.learning_rates.is_over(),
        )
        self._event_log.event(finished, is_synced=True)


def _not_emitted() -> Finding:
    return Finding(
        rule="hooks-not-emitted",
        severity="warning",
        problem="what --emit prints does not call the experiment's hooks.",
        because="they are called by flatout's own loop",
        fixes=(Fix(text="call them between the updates yourself, or train with flatout"),),
    )


def _layout(ranks: RankGroup, named: dict[str, Any], previous: Recipe | None) -> ModelLayout:
    """The layout of the model, from the user's choices and the recipe before."""
    return ModelLayout(
        ranks=ranks,
        requested=named.get("sharding") or (previous.sharding.value if previous else None),
        exchange=named.get("exchange") or (previous.exchange.value if previous else "agreed"),
    )


def _taken_up(task: TrainTask, session: Session, event_log: EventLog, state: Any) -> HookRounds:
    """Gives a session the run's state, if it has one, and begins its hooks."""
    try:
        if state is not None:
            is_changed = has_other_file(state, task.spec, task.change)
            if is_changed:
                check_fit(session, state, task.folder, task.change)
            take_over(session, state, is_changed=is_changed)
            session.hooks.load_state(state.get("hooks"), session.device, is_changed=is_changed)
            # Its reader still holds it: in memory, or the file.
            forget_tensors(state)
        # Whatever an experiment has drawn where no seed reaches: all begin with the same.
        session.ranks.copy_from_first(session.model)
        hooks = HookRounds(session, event_log, task.folder)
        hooks.start()
    except BaseException:
        session.close()
        raise
    return hooks


def _look_ahead(task: TrainTask, session: Session, event_log: EventLog, *, is_new: bool) -> None:
    """Looks, before the first step, for what would go wrong later."""
    change = task.change
    is_longer = change.epochs is not None or change.steps is not None
    if is_new or is_longer or change.file is not None:
        check_schedule(session, event_log, task.folder.typed, task.spec, change)
    if is_new or change.file is not None:
        check_validation(session, event_log)


def _keep_changes(task: TrainTask, session: Session, event_log: EventLog, history: History) -> None:
    """Writes into the run what the user has changed of it, now that it is not refused."""
    change, step = task.change, session.position.step
    if change.file is not None:
        other = other_data(session, history)
        if other is not None:
            event_log.warn(step, other)
        assert task.text is not None, "read before the experiment was built"
        adopt(task.folder, event_log, task.text, change.file.sha256, step, fits_of(session))
    if change.epochs is not None or change.steps is not None:
        extended = Extended(at=now_s(), step=step, epochs=change.epochs, steps=change.steps)
        event_log.event(extended, is_synced=True)


def _begin_with(task: TrainTask, model: nn.Module) -> None:
    """Gives a model the weights that its run begins with."""
    assert task.spec.init is not None
    # The run's own copy, once it has one: the weights of a live run may change.
    source, own_copy = Path(task.spec.init), task.folder.path / "init.safetensors"

    def load_and_copy() -> None:
        init_weights(model, own_copy if own_copy.exists() else source)
        if not own_copy.exists() and source.is_dir():
            keep_weights(model, own_copy)
        elif not own_copy.exists():
            atomic_files.copy_atomically(source, own_copy)

    # The first rank alone writes; the others read what it has written.
    task.ranks.broadcast_from_rank0(load_and_copy, about="first weights")
    # A model without memory is sent the first rank's weights.
    if not task.ranks.is_first and not has_no_memory(model):
        init_weights(model, own_copy)


def _limit_bytes(folder: RunFolder) -> int | None:
    """The computer's memory that a container allows this process."""
    machine = atomic_files.read_json(folder.header, RunHeader).machine
    return machine.memory.limit_bytes if machine is not None else None
