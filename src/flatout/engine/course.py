"""A run's course: stretches of training, one after another, each under one recipe."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
from torch import nn

from flatout.engine import randomness
from flatout.engine.changed_file import adopt, check_fit, fits_of, has_other_file, other_data
from flatout.engine.checkpoint import shared_checkpoint
from flatout.engine.contestants import Subject
from flatout.engine.defaults import changed_recipe, check_recipe, shared_workers, threads
from flatout.engine.deferred_build import has_no_memory
from flatout.engine.echo import Echo
from flatout.engine.experiment import Experiment
from flatout.engine.facts import chosen_device, device_put_back
from flatout.engine.gate.splitting import Training, why_not_split
from flatout.engine.history import History, read_history
from flatout.engine.journal import Journal
from flatout.engine.layout import Layout
from flatout.engine.length import check_schedule, limits_of, run_is_finished
from flatout.engine.loop import Ending, Limits, Loop, Surroundings
from flatout.engine.memory import MemoryCap, give_way, release_memory, room_left, room_on
from flatout.engine.meter import Meter, peak_allocated_bytes, peak_memory_bytes
from flatout.engine.outline import outline
from flatout.engine.pinning import pinning_problem, with_pinning_tried
from flatout.engine.precision import check_precision, check_repeatable
from flatout.engine.ranks import ALONE, Ranks
from flatout.engine.relief import means_of, relieved_after_kill
from flatout.engine.sanity_check import check_before_search, check_validation
from flatout.engine.saver import Saver, SilentSaver
from flatout.engine.session import Built, Session, build, process_settings
from flatout.engine.session_state import forget_tensors, own_state_of, state_of, take_over
from flatout.engine.shares import check_shares
from flatout.engine.start import (
    are_other_ranks,
    beside_others,
    check_ranks,
    inexact,
    left_out,
    not_searched,
    of_ranks,
    started,
)
from flatout.engine.state import pack, unpack
from flatout.engine.tuner import Search, tuned_recipe
from flatout.engine.watch import StopRequest
from flatout.engine.weights import init_weights, keep_weights
from flatout.errors import FlatoutError
from flatout.nouns.change import Change
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.lines import Event, Extended, Finished, Outlined, Profiled, RecipeSet, Stopped
from flatout.nouns.recipe import Recipe
from flatout.nouns.run import RunHeader
from flatout.system import store
from flatout.system.clock import elapsed_s, now_s
from flatout.system.load import LoadWatch
from flatout.system.runs import RunFolder
from flatout.tune.memory import Room


@dataclass(frozen=True)
class Task:
    """Which run is trained, as whom, with what changed, who may stop it, who reads along.

    is_alone: the process is the run's own, and may be kept from what others need.
    ranks: those that train it together; this process is one of them.
    text: of the changed file that the run goes on with.
    """

    folder: RunFolder
    spec: ExperimentSpec
    change: Change
    request: StopRequest
    echo: Echo | None = None
    is_alone: bool = False
    ranks: Ranks = ALONE
    text: bytes | None = None


class Course:
    """Takes a run from its state to its end, or to where it is stopped.

    Args:
        task: which run.
        experiment: what is trained.
        journal: where it is told.
        state: of the last checkpoint; None at the beginning.
    """

    def __init__(self, task: Task, experiment: Experiment, journal: Journal, state: Any) -> None:
        self._task = task
        self._experiment = experiment
        self._journal = journal
        self._state = state
        self._history = task.ranks.told(lambda: read_history(task.folder), History)
        self._began_s = elapsed_s()
        self._watch = LoadWatch()
        self._load_s = now_s() - psutil.Process().create_time()
        self._saver: Saver | SilentSaver | None = None
        self._length = Limits(epochs=None, steps=None)
        self._session: Session | None = None
        self._room: Room | None = None
        self._cap: MemoryCap | None = None
        # What has taken the GPU from this process while it searched.
        self._lost: list[FlatoutError] = []
        # The next stretch begins at a checkpoint, and what was told since is told anew.
        self._has_gone_back = False
        self._is_taken_up = False

    @property
    def step(self) -> int:
        """Updates made so far."""
        if self._session is not None:
            return self._session.position.step
        return int(self._state["position"]["step"]) if self._state else 0

    def train(self) -> nn.Module:
        """Trains stretch after stretch until one ends otherwise than by a change of recipe."""
        self._length = limits = self._limits()
        recipe = self._history.recipe_at(self.step)
        named = self._task.change.fixed or (self._task.spec.fixed if recipe is None else {})
        ranks = self._task.ranks
        device_name = named.get("device") or (recipe.device.value if recipe else None)
        device_name = ranks.device_name(device_name)
        held, layout = recipe, _layout(ranks, named, recipe)
        with randomness.untouched_generators(chosen_device(device_name)), device_put_back():
            built = self._with_room(self._build(device_name, layout))
            if self._task.spec.tuning.is_outlined and self._experiment.step is None:
                # Before the search: what no program can be written for is refused at once.
                found = outline(built, built.recipe(self._task.spec.fixed))
                self._journal.event(Outlined(at=now_s(), step=0, outline=found))
            ranks.attach(built.device)
            recipe = ranks.told(lambda: self._decided(built, held, limits), Recipe)
            if ranks.size > 1:
                ask = functools.partial(
                    check_shares, built, recipe, self._journal, self._task.folder, self.step
                )
                ranks.told(ask, about="shares")
            self._history = ranks.told(lambda: read_history(self._task.folder), History)
            if self._task.spec.tuning.is_only:
                return self._only_tuned(built, recipe)
            meter = Meter(built.device, self._state["split_s"] if self._state else None)
            while True:
                # What a single rank has decided may be more than several can do.
                check_ranks(ranks, recipe, built)
                check_repeatable(recipe, built.device)
                with process_settings(recipe):
                    ending = self._stretch(Session(built, recipe, ranks), limits, meter)
                assert self._session is not None
                if ending not in ("recipe", "back"):
                    self._tell_end(ending, meter)
                    return self._session.model
                # Two of them may not fit into the memory.
                del built
                recipe = self._turn(ending)
                device_name = ranks.device_name(recipe.device.value)
                layout = replace(layout, wish=recipe.sharding.value, exchange=recipe.exchange.value)
                built = self._build(device_name, layout)

    def _turn(self, ending: Ending) -> Recipe:
        """The end of one stretch and the beginning of the next: its state, and its recipe."""
        assert self._session is not None
        if ending == "recipe":
            packed = pack(state_of(self._session, is_for_all=True))
            self._state = unpack(packed.tree, packed.tensors)
        else:
            checkpoint, damaged = shared_checkpoint(self._task.folder, self._task.ranks)
            for finding in damaged:
                self._journal.warn(self.step, finding)
            self._state = checkpoint.state if checkpoint is not None else None
        self._has_gone_back = ending == "back"
        self._session = None
        release_memory()
        self._history = self._task.ranks.told(lambda: read_history(self._task.folder), History)
        recipe = self._history.recipe_at(self.step)
        assert recipe is not None, "a stretch was made under one"
        return recipe

    def _with_room(self, built: Built) -> Built:
        """Leaves other programs what they need; a notebook's process is not only the run's."""
        if not self._task.is_alone:
            return built
        device, asked = built.device, self._task.change.leave_free_bytes
        asked = self._task.spec.leave_free_bytes if asked is None else asked
        self._room = room = room_on(device, asked)
        if room.is_capped:
            self._cap = MemoryCap(device, room.leave_bytes)
        if room.is_desktop:
            give_way()
        if room.is_desktop or room.leave_bytes:
            is_searched = self._task.spec.tuning.mode != "off" and self._state is None
            self._journal.warn(self.step, room_left(room, device, is_searched=is_searched))
        free = built.facts.free_device_bytes
        if free is None:
            return built
        facts = replace(built.facts, free_device_bytes=max(0, free - room.leave_bytes))
        return replace(built, facts=facts)

    def _build(self, device_name: str | None, layout: Layout) -> Built:
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

    def _stretch(self, session: Session, limits: Limits, meter: Meter) -> Ending:
        if self._state is not None:
            is_changed = has_other_file(self._state, self._task.spec, self._task.change)
            if is_changed:
                check_fit(session, self._state, self._task.folder, self._task.change)
            take_over(session, self._state, is_changed=is_changed)
            # Whoever has read it still holds it: in memory, or the file.
            forget_tensors(self._state)
        # Whatever an experiment has drawn where no seed reaches: all begin with the same.
        session.ranks.copy_from_first(session.model)
        self._session = session
        if self._saver is None:
            # What cannot be stored is refused before the first step, not at the first save.
            pack(own_state_of(session), is_copied=False)
            self._saver = SilentSaver()
            if session.ranks.is_first:
                every = session.recipe.checkpoint_every.value
                self._saver = Saver(self._task.folder, every, meter)
            history = self._history
            for finding in (*inexact(session, history.versions), *of_ranks(session, history)):
                self._journal.warn(self.step, finding)
            self._has_gone_back = True
            try:
                _look_ahead(self._task, session, self._journal, is_new=self._state is None)
            except BaseException:
                # Whoever holds the error would hold the loader's workers, too.
                session.close()
                raise
            meter.mark("validation")
        if self._has_gone_back:
            # From here on nothing is refused any more: the run is taken up.
            if self._task.ranks.is_first and not self._is_taken_up:
                _keep_changes(self._task, session, self._journal, self._history)
            self._is_taken_up = True
            self._has_gone_back = False
            self._journal.cut_metrics(self._state["metrics_bytes"] if self._state else 0)
            begun = started(session, limits, self._task.change, resumed=self._state is not None)
            self._journal.event(begun, is_synced=True)
        around = Surroundings(
            folder=self._task.folder,
            journal=self._journal,
            saver=self._saver,
            meter=meter,
            request=self._task.request,
            cap=self._cap,
        )
        change_at = self._history.next_change(session.position.step)
        stretch = Limits(epochs=limits.epochs, steps=limits.steps, recipe_changes_at=change_at)
        try:
            ending = Loop(session, stretch, around).run()
        finally:
            session.close()
            # Whatever has happened: what is being written is written to its end.
            self._saver.finish()
            for line in self._saver.take_written():
                self._journal.event(line)
        return ending

    def _limits(self) -> Limits:
        """How long the run is."""
        task, epoch = self._task, int(self._state["position"]["epoch"]) if self._state else 0
        limits = limits_of(self._experiment, task.spec, self._history, task.change)
        if self._history.is_finished and limits.are_reached(epoch, self.step):
            raise run_is_finished(
                task.folder.typed, task.spec, task.change, limits, epoch, self.step
            )
        if self._history.is_finished and self._state is not None:
            # Whoever trains a stopped run longer wants to see whether there is more to come.
            self._state["position"]["num_worse"] = 0
        return limits

    def _decided(self, built: Built, held: Recipe | None, limits: Limits) -> Recipe:
        """The recipe that holds now; what is decided anew is on the disk before the first step."""
        fixed, folder = self._task.change.fixed, self._task.folder
        if held is not None and self._task.change.is_after_kill:
            means = means_of(built.facts, self._task.ranks.size)
            training = Training(
                experiment=self._experiment,
                seed=built.seed,
                device=built.device,
                data=built.train_data,
            )
            ask = functools.partial(why_not_split, training)
            held = relieved_after_kill(folder, self._journal, means, self.step, ask)
            self._history = read_history(folder)
        are_others = are_other_ranks(self._task.ranks, held, self._history)
        if held is not None and not fixed and not are_others:
            return held
        if held is None:
            fixed = self._task.spec.fixed | fixed
            if self._task.spec.not_fixed:
                self._journal.warn(self.step, left_out(self._task.spec.not_fixed))
            recipe = self._tuned(built, fixed, built.num_updates(limits.epochs, limits.steps))
            recipe = recipe or built.recipe(fixed)
            if not self._lost:
                recipe = with_pinning_tried(recipe, built)
        else:
            if are_others:
                held = msgspec.structs.replace(held, num_threads=threads(built.facts))
                held = shared_workers(held, built.facts)
            recipe = changed_recipe(held, fixed)
        check_ranks(self._task.ranks, recipe, built)
        # What is refused must not be in the history, or every resume would be refused.
        check_precision(recipe.precision.value, built.device)
        built.optimizers.check_implementation(
            recipe.optimizer_implementation.value, can_be_fused=built.facts.can_be_fused
        )
        findings = check_recipe(recipe, built.facts)
        if self._task.ranks.size == 1:
            findings += beside_others(recipe, self._watch.load())
        # Samples that cannot be kept are refused here, too.
        built.caching_for(recipe)
        for finding in findings:
            self._journal.warn(self.step, finding)
        self._journal.event(RecipeSet(at=now_s(), step=self.step, recipe=recipe), is_synced=True)
        self._history = read_history(folder)
        if self._lost and not self._task.spec.tuning.is_only:
            # Another process goes on from here: it has a recipe now.
            raise self._lost[0]
        return recipe

    def _tuned(self, built: Built, fixed: dict[str, Any], num_steps: int | None) -> Recipe | None:
        """The recipe by measuring, where that is wanted and pays; None takes the defaults."""
        task, wish = self._task, self._task.spec.tuning
        # What is iterated may be one object with a place in it, which a search would move on.
        is_unfit = self._experiment.step is not None or built.facts.data_kind == "iterable"
        if wish.mode == "off" or (wish.mode == "auto" and (num_steps is None or is_unfit)):
            return None
        if task.ranks.size > 1:
            # It was to be searched for on one rank, and broken off before anything was decided.
            self._journal.warn(self.step, not_searched())
            return None
        subject = Subject(
            experiment=self._experiment,
            seed=task.spec.seed,
            device_name=fixed.get("device"),
            fixed=fixed,
            room=self._room,
            limit_bytes=_limit_bytes(task.folder),
            pinning_problem=pinning_problem(built, built.recipe(fixed)),
        )

        def tell(line: Event) -> None:
            if isinstance(line, Profiled) and not wish.is_only:
                # From here on it takes a while: a mistake in the validation is told before.
                check_before_search(self._experiment, task.spec.seed, fixed, built.train_data)
            self._journal.event(line)

        search = Search(
            subject=subject,
            wish=wish,
            num_steps=num_steps,
            request=task.request,
            tell=tell,
            # A notebook's experiment is nowhere that another process could load it from.
            folder=None if task.echo is not None else task.folder.path,
            load_s=self._load_s,
            lose=None if task.echo is not None else self._lost.append,
        )
        return tuned_recipe(search)

    def _only_tuned(self, built: Built, recipe: Recipe) -> nn.Module:
        """The end where nothing was to be trained."""
        store.write_json(self._task.folder.recipe, recipe)
        spent_s = elapsed_s() - self._began_s
        finished = Finished(
            at=now_s(), step=0, train_s=0.0, split_s={"tuning": spent_s}, num_samples_seen=0
        )
        self._journal.event(finished, is_synced=True)
        return built.model

    def _tell_end(self, ending: Ending, meter: Meter) -> None:
        assert self._session is not None and self._saver is not None
        if ending == "stopped":
            reason = self._task.request.reason or "asked to stop"
            stopped = Stopped(at=now_s(), step=self.step, reason=reason)
            self._journal.event(stopped, is_synced=True)
            return
        split_s = meter.split_s()
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
            reason=f"early stopping: {patience} validations without a better {best}"
            if ending == "early"
            else None,
            is_schedule_over=self._session.learning_rates.is_over(),
        )
        self._journal.event(finished, is_synced=True)


def _layout(ranks: Ranks, named: dict[str, Any], held: Recipe | None) -> Layout:
    """How the model is laid out, from what a person has fixed and the recipe before."""
    return Layout(
        ranks=ranks,
        wish=named.get("sharding") or (held.sharding.value if held else None),
        exchange=named.get("exchange") or (held.exchange.value if held else "agreed"),
    )


def _look_ahead(task: Task, session: Session, journal: Journal, *, is_new: bool) -> None:
    """Looks, before the first step, for what would go wrong later."""
    change = task.change
    is_longer = change.epochs is not None or change.steps is not None
    if is_new or is_longer or change.file is not None:
        check_schedule(session, journal, task.folder.typed, task.spec, change)
    if is_new or change.file is not None:
        check_validation(session, journal)


def _keep_changes(task: Task, session: Session, journal: Journal, history: History) -> None:
    """Writes into the run what a person has changed of it, now that it is not refused."""
    change, step = task.change, session.position.step
    if change.file is not None:
        other = other_data(session, history)
        if other is not None:
            journal.warn(step, other)
        assert task.text is not None, "read before the experiment was built"
        adopt(task.folder, journal, task.text, change.file.sha256, step, fits_of(session))
    if change.epochs is not None or change.steps is not None:
        extended = Extended(at=now_s(), step=step, epochs=change.epochs, steps=change.steps)
        journal.event(extended, is_synced=True)


def _begin_with(task: Task, model: nn.Module) -> None:
    """Gives a model the weights that its run begins with."""
    assert task.spec.init is not None
    # The run's own copy, once it has one: the weights of a live run may change.
    given, kept = Path(task.spec.init), task.folder.path / "init.safetensors"

    def keep() -> None:
        init_weights(model, kept if kept.exists() else given)
        if not kept.exists() and given.is_dir():
            keep_weights(model, kept)
        elif not kept.exists():
            store.copy_atomically(given, kept)

    # The first rank alone writes; the others read what it has written.
    task.ranks.told(keep, about="first weights")
    # A model without memory is sent the first rank's weights.
    if not task.ranks.is_first and not has_no_memory(model):
        init_weights(model, kept)


def _limit_bytes(folder: RunFolder) -> int | None:
    """What a container lets this process have of the computer's memory."""
    machine = store.read_json(folder.header, RunHeader).machine
    return machine.memory.limit_bytes if machine is not None else None
