"""Changes of recipe after OOM: less memory, more again, or uncompiled; logged before use."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from flatout.engine.ranks.protocol import ALONE, RankGroup
from flatout.engine.recipe.experiment_facts import ExperimentFacts
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runlog.history import History
from flatout.engine.runtime.error_map import no_algorithm
from flatout.engine.runtime.oom import OutOfMemory
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.oom_adaptation import AdaptationKind, OomAdaptation
from flatout.schema.recipe import Choice, Recipe
from flatout.tune.oom_policy import OomOptions, oom_recipe_fields, samples_in_micro_batch

# Why a batch cannot be split further under a recipe, checked on the device or on the CPU.
SplitCheck = Callable[..., str | None]


class OomRecovery:
    """Changes a run's recipe where memory is short, in its history.

    growth_after: the step after which larger micro-batches should be tried; infinity tries none.

    Args:
        event_log: of the run; its history has earlier decisions.
        options: how its step can take less.
        step: the updates made so far.
        ranks: those that decide alike; rank 0 logs it.
        check_split: why a batch under a recipe cannot be split further; None where it can. With
            `has_device=False` the GPU is left alone.
    """

    def __init__(
        self,
        event_log: EventLog,
        options: OomOptions,
        step: int,
        ranks: RankGroup = ALONE,
        check_split: SplitCheck | None = None,
    ) -> None:
        self._event_log = event_log
        self._ranks = ranks
        self._options = options
        self._check_split = check_split
        self._own_loss: RunFailed | None = None
        self._read(step)

    def _read(self, step: int) -> None:
        self._history = self._ranks.broadcast_from_rank0(lambda: self._event_log.history, History)
        self._growth = self._history.growth(step)
        self.growth_after = self._growth.after_step if self._growth is not None else math.inf

    def less(self, oom: OutOfMemory, step: int, *, is_in_place: bool) -> Recipe:
        """The recipe with which the step after `step` takes less memory; in the history by now.

        Raises:
            RunFailed: out-of-memory, where there is none that computes the same.
        """
        self._learn(oom, step, self._ranks)
        self._write_less(oom, step, is_in_place=is_in_place)
        self._read(step)
        return _recipe_at(self._history, step)

    def _learn(
        self, oom: OutOfMemory, step: int, ranks: RankGroup, *, has_device: bool = True
    ) -> None:
        """Checks, before the batch is split for the first time, whether that computes the same."""
        recipe = _recipe_at(self._history, step)
        changes = oom_recipe_fields(recipe, self._options, oom.part)
        is_split = isinstance(changes, dict) and "micro_batch_size" in changes
        adaptations = [
            line.adaptation for line in self._history.decisions if line.adaptation is not None
        ]
        reasons = [
            adaptation.not_split for adaptation in adaptations if adaptation.not_split is not None
        ]
        if not is_split or recipe.out_of_memory.value == "shrink" or self._check_split is None:
            return
        shares = self._history.shares
        if reasons:
            reason: str | None = reasons[-1]
        elif shares is not None and shares.is_checked:
            reason = shares.reason
        elif any(adaptation.kind == "smaller" for adaptation in adaptations):
            return
        else:
            arguments = {} if has_device else {"has_device": False}
            check = functools.partial(self._check_split, recipe, **arguments)
            reason = ranks.broadcast_from_rank0(check, str | None, about="parts of a batch")
        self._options = msgspec.structs.replace(self._options, not_split=reason)

    def lost_here(self, error: RunFailed, oom: OutOfMemory, step: int) -> None:
        """Makes the process that resumes after this GPU was lost use less memory after `step`.

        No collective: the other ranks are elsewhere, and hear of it when this one leaves.

        Raises:
            RunFailed: out-of-memory.
        """
        self._own_loss = error
        self._learn(oom, step, ALONE, has_device=False)
        self._write_less(oom, step, is_in_place=False)

    def lost_elsewhere(self, error: Exception, step: int) -> None:
        """The same if an exception says that another rank has lost its GPU: the first one writes.

        Raises:
            RunFailed: out-of-memory, on the first rank.
        """
        if not isinstance(error, RunFailed) or error.rule != "gpu-state-lost":
            return
        # The others would check whether a batch can be split, and write nothing.
        if not self._ranks.is_first:
            return
        if error is not self._own_loss:
            oom = OutOfMemory(part="other", because=error.because or error.problem)
            self._learn(oom, step, ALONE)
            self._write_less(oom, step, is_in_place=False, num_behind=1)

    def _write_less(
        self, oom: OutOfMemory, step: int, *, is_in_place: bool, num_behind: int = 0
    ) -> None:
        """num_behind: so many updates fewer than here may have been made where memory ran out."""
        recipe, step = _recipe_at(self._history, step), max(0, step - num_behind)
        changes = oom_recipe_fields(recipe, self._options, oom.part)
        if isinstance(changes, str):
            raise _no_relief(oom, changes, recipe, self._options)
        before = samples_in_micro_batch(recipe, self._options)
        adaptation = OomAdaptation(
            kind=_kind_of(changes),
            step=step + 1,
            before=before,
            after=changes.get("micro_batch_size", before),
            part=oom.part,
            is_in_place=is_in_place,
            because=oom.because,
            not_split=self._options.not_split,
        )
        self._write(step, changes, adaptation, f"out of memory at step {step + 1:,}")

    def more(self, step: int) -> Recipe:
        """The recipe with larger micro-batches, from the step after `step` on."""
        assert self._growth is not None, "called only when an increase is due"
        before = _recipe_at(self._history, step).micro_batch_size.value
        after = self._growth.micro_batch_size
        adaptation = OomAdaptation(kind="larger", step=step + 1, before=before, after=after)
        why = f"retried at step {step + 1:,}: memory may be free again"
        self._write(step, {"micro_batch_size": after}, adaptation, why)
        self._read(step)
        return _recipe_at(self._history, step)

    def uncompiled(self, failure: RunFailed, step: int, *, is_in_place: bool) -> Recipe:
        """The recipe with which nothing is compiled, from the step after `step` on.

        Raises:
            RunFailed: compiling-failed, where the user has set it.
        """
        recipe = _recipe_at(self._history, step)
        if recipe.compiled.origin == "yours":
            raise failure
        size = samples_in_micro_batch(recipe, self._options)
        adaptation = OomAdaptation(
            kind="uncompiled",
            step=step + 1,
            before=size,
            after=size,
            is_in_place=is_in_place,
            because=failure.because,
        )
        why = f"compilation failed at step {step + 1:,}"
        self._write(step, {"compiled": "off"}, adaptation, why)
        self._read(step)
        return _recipe_at(self._history, step)

    def without(
        self, kind: Literal["uncaptured", "uncached"], error: FlatoutError, step: int
    ) -> None:
        """Writes down that the step after `step`, and all later ones, do without something.

        No collective: each rank finds out for itself, and all of them train the same either way.

        Args:
            kind: without a graph, where recording it has ended this process; or without keeping
                samples, here and now.
            error: the reason.
            step: the newest one.
        """
        if not self._ranks.is_first:
            return
        size = samples_in_micro_batch(_recipe_at(self._history, step), self._options)
        is_lost = isinstance(error, RunFailed)
        self._own_loss = error if isinstance(error, RunFailed) else None
        adaptation = OomAdaptation(
            kind=kind,
            step=step + 1,
            before=size,
            after=size,
            is_in_place=not is_lost,
            because=error.because or error.problem,
        )
        changes = {"uncaptured": {"capture": "off"}, "uncached": {"data_path": "loader"}}
        whys = {
            "uncaptured": "recording a graph failed",
            "uncached": error.because or "its samples cannot be cached",
        }
        self._write(step, changes[kind], adaptation, whys[kind])
        self._history = self._event_log.history

    def warn(self, step: int, error: FlatoutError) -> None:
        """Logs an error that does not end the training."""
        self._event_log.warn_of(step, error)

    def _write(
        self, step: int, changes: dict[str, Any], adaptation: OomAdaptation, why: str
    ) -> None:
        choices = {
            name: Choice(value=value, why=why, origin="measured", evidence=adaptation.because)
            for name, value in changes.items()
        }
        for line in self._history.adapted(step, choices, adaptation):
            self._event_log.event(line, is_synced=True)


def _recipe_at(history: History, step: int) -> Recipe:
    recipe = history.recipe_at(step)
    assert recipe is not None, "every step has a recipe"
    return recipe


def oom_options_of(facts: ExperimentFacts, num_ranks: int) -> OomOptions:
    """The options for a step with less memory, with so many ranks sharing each batch."""
    return OomOptions(
        # Of the largest share: a micro-batch of more samples than that would save nothing.
        batch_size=math.ceil(facts.batch_size / num_ranks),
        has_batch_norm=facts.has_batch_norm,
        has_own_step=facts.has_own_step,
        has_blocks=facts.num_blocks > 0,
    )


def relieved_after_kill(
    event_log: EventLog, options: OomOptions, step: int, check_split: SplitCheck | None = None
) -> Recipe:
    """The recipe for resuming after the kernel killed a process because memory was full.

    In which step that was is unknown: the recipe holds from here on.

    Raises:
        RunFailed: out-of-memory, where there is none that computes the same.
    """
    because = "the kernel killed the process: the computer was out of memory"
    oom = OutOfMemory(part="process", because=because)
    return OomRecovery(event_log, options, step, check_split=check_split).less(
        oom, step, is_in_place=False
    )


def _kind_of(changes: dict[str, Any]) -> AdaptationKind:
    if "capture" in changes:
        return "uncaptured"
    return "smaller" if "micro_batch_size" in changes else "recomputed"


def _no_relief(oom: OutOfMemory, reason: str, recipe: Recipe, options: OomOptions) -> RunFailed:
    failed = no_algorithm(oom.because)
    if failed is not None:
        return failed
    size = samples_in_micro_batch(recipe, options)
    fix = "use a smaller batch_size or model; or free memory, and resume the run"
    if options.has_batch_norm and recipe.out_of_memory.value == "auto" and size > 1:
        fix = (
            "resume with --on-oom shrink to let BatchNorm see smaller micro-batches; or use a "
            "smaller batch_size, or norms without running statistics, such as GroupNorm"
        )
    elif options.not_split is not None:
        fix = (
            "if `loss` returns a mean, return a sum and its count instead; or use a smaller "
            "batch_size; or resume with --on-oom shrink to compute it over smaller parts"
        )
    elif recipe.out_of_memory.value == "stop":
        fix = (
            "resume with --on-oom auto to continue with less memory; or with --use "
            "micro_batch_size=N, or --use activation_checkpointing=true"
        )
    return RunFailed(
        "out-of-memory",
        f"not enough memory for this step, and no way to use less: {reason}.",
        because=oom.because,
        fix=fix,
    )
