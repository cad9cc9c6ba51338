"""The decisions of a run so far: its recipes and its length, folded from its events.

The events are read from the disk once; what is decided afterwards is added to the history in
memory by the event log that writes it (`event_log.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.run_lines import (
    Event,
    Extended,
    Finished,
    FlopsCounted,
    RecipeSet,
    SharesChecked,
    Started,
)
from flatout.system import atomic_files
from flatout.system.clock import now_s
from flatout.system.store.run_folder import RunFolder
from flatout.tune.oom_policy import Growth, growth


@dataclass(frozen=True, kw_only=True)
class History:
    """Decisions of a run, in the order in which they were made.

    decisions: from the step after each one on, its recipe holds.
    epochs, steps: to how many the run was extended; None if it was not.
    num_samples: of the training data, when the run was taken up last.
    shares: whether shares of a batch compute what the batch does; None if not checked.
    versions: of the last worker, None for a new run. num_ranks: that it had.
    is_finished: whether the last worker came to the run's end.
    are_flops_counted: whether it was tried to count the FLOPs of a step.
    """

    decisions: tuple[RecipeSet, ...] = ()
    epochs: int | None = None
    steps: int | None = None
    num_samples: int | None = None
    shares: SharesChecked | None = None
    versions: dict[str, str] | None = None
    num_ranks: int = 1
    is_finished: bool = False
    are_flops_counted: bool = False

    def after(self, event: Event) -> History:
        """The history with one more event."""
        match event:
            case RecipeSet():
                # What was decided for a later step, before the run went back, is void.
                before = [made for made in self.decisions if made.step < event.step]
                return replace(self, decisions=(*before, event))
            case Extended():
                return replace(self, epochs=event.epochs, steps=event.steps)
            case SharesChecked():
                return replace(self, shares=event)
            case Started():
                return replace(
                    self,
                    num_samples=event.num_samples,
                    versions=event.versions,
                    num_ranks=event.num_ranks,
                    is_finished=False,
                )
            case Finished():
                return replace(self, is_finished=True)
            case FlopsCounted():
                return replace(self, are_flops_counted=True)
        return self

    def recipe_at(self, step: int) -> Recipe | None:
        """The recipe with which the step after `step` is made; None before the first one."""
        recipes = [line.recipe for line in self.decisions if line.step <= step]
        return recipes[-1] if recipes else None

    def next_change(self, step: int) -> int | None:
        """The next step after which another recipe holds: decided before, replayed now."""
        return min((line.step for line in self.decisions if line.step > step), default=None)

    def growth(self, step: int) -> Growth | None:
        """The time for larger micro-batches, as seen after `step`."""
        if self.next_change(step) is not None:
            # What was decided for later is replayed, and nothing tried in the meantime.
            return None
        adaptations: list[OomAdaptation] = []
        for line in self.decisions:
            # A size decided elsewhere, such as by the user, is the limit of growth.
            adaptations = [] if line.adaptation is None else [*adaptations, line.adaptation]
        return growth(adaptations)

    def adapted(
        self, step: int, changes: dict[str, Choice[Any]], adaptation: OomAdaptation
    ) -> Iterator[RecipeSet]:
        """The lines that make these changes from the step after `step` on.

        What was decided for later stays decided, but takes no more memory than this; larger
        micro-batches are tried when it is time for them again.
        """
        recipe = self.recipe_at(step)
        assert recipe is not None
        recipe = msgspec.structs.replace(recipe, **changes)
        yield RecipeSet(at=now_s(), step=step, recipe=recipe, adaptation=adaptation)
        for line in self.decisions:
            is_larger = line.adaptation is not None and line.adaptation.kind == "larger"
            if line.step > step and not is_larger:
                later = msgspec.structs.replace(line.recipe, **_smaller(line.recipe, changes))
                yield msgspec.structs.replace(line, at=now_s(), recipe=later)


def _smaller(recipe: Recipe, changes: dict[str, Choice[Any]]) -> dict[str, Choice[Any]]:
    size = changes.get("micro_batch_size")
    is_smaller_already = size is not None and recipe.micro_batch_size.value <= size.value
    return {
        name: choice
        for name, choice in changes.items()
        if not (name == "micro_batch_size" and is_smaller_already)
    }


def read_history(folder: RunFolder) -> History:
    """Reads a run's decisions from its events."""
    return functools.reduce(History.after, atomic_files.read_lines(folder.events, Event), History())
