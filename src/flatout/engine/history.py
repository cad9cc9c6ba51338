"""What a run has decided so far: its recipes and its length, as its events tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from flatout.nouns.adaptation import Adaptation
from flatout.nouns.lines import Event, Extended, Finished, RecipeSet, SharesChecked, Started
from flatout.nouns.recipe import Choice, Recipe
from flatout.system import store
from flatout.system.clock import now_s
from flatout.system.runs import RunFolder
from flatout.tune.relief import Growth, growth


@dataclass(frozen=True, kw_only=True)
class History:
    """Decisions of a run, in the order in which they were made.

    decisions: from the step after each one on, its recipe holds.
    epochs, steps: to how many the run was extended; None if it was not.
    num_samples: of the training data, when the run was taken up last.
    shares: whether shares of a batch compute what the batch does; None where nobody asked.
    versions: of the last worker, None for a new run. num_ranks: that it had.
    is_finished: whether the last worker came to the run's end.
    """

    decisions: tuple[RecipeSet, ...]
    epochs: int | None
    versions: dict[str, str] | None
    is_finished: bool
    num_ranks: int = 1
    num_samples: int | None = None
    steps: int | None = None
    shares: SharesChecked | None = None

    def recipe_at(self, step: int) -> Recipe | None:
        """The recipe with which the step after `step` is made; None before the first one."""
        held = [line.recipe for line in self.decisions if line.step <= step]
        return held[-1] if held else None

    def next_change(self, step: int) -> int | None:
        """The next step after which another recipe holds: decided before, replayed now."""
        return min((line.step for line in self.decisions if line.step > step), default=None)

    def growth(self, step: int) -> Growth | None:
        """When larger micro-batches are to be tried, as seen after `step`."""
        if self.next_change(step) is not None:
            # What was decided for later is replayed, and nothing tried meanwhile.
            return None
        adaptations: list[Adaptation] = []
        for line in self.decisions:
            # What was decided otherwise, by the person for one, is what it may grow to.
            adaptations = [] if line.adaptation is None else [*adaptations, line.adaptation]
        return growth(adaptations)

    def adapted(
        self, step: int, changes: dict[str, Choice[Any]], adaptation: Adaptation
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
    events = store.read_lines(folder.events, Event)
    decisions: list[RecipeSet] = []
    for line in events:
        if isinstance(line, RecipeSet):
            # Decided after the run went back: what an earlier session decided for later is void.
            decisions = [made for made in decisions if made.step < line.step]
            decisions.append(line)
    extended = [line for line in events if isinstance(line, Extended)]
    started = [line for line in events if isinstance(line, Started)]
    shares = [line for line in events if isinstance(line, SharesChecked)]
    turns = [line for line in events if isinstance(line, Started | Finished)]
    return History(
        decisions=tuple(decisions),
        epochs=extended[-1].epochs if extended else None,
        steps=extended[-1].steps if extended else None,
        num_samples=started[-1].num_samples if started else None,
        versions=started[-1].versions if started else None,
        num_ranks=started[-1].num_ranks if started else 1,
        shares=shares[-1] if shares else None,
        is_finished=bool(turns) and isinstance(turns[-1], Finished),
    )
