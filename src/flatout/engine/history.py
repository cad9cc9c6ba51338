"""What a run has decided so far: its recipes and its length, as its events tell."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.nouns.lines import Event, Extended, Finished, RecipeSet, Started
from flatout.nouns.recipe import Recipe
from flatout.system import store
from flatout.system.runs import RunFolder


@dataclass(frozen=True, kw_only=True)
class History:
    """Decisions of a run, in the order in which they were made.

    recipes: (step, recipe): from the step after it on, that recipe holds.
    epochs: to how many epochs the run was extended, None if it was not.
    versions: of the last worker, None for a new run.
    is_finished: whether the last worker came to the run's end.
    """

    recipes: tuple[tuple[int, Recipe], ...]
    epochs: int | None
    versions: dict[str, str] | None
    is_finished: bool

    def recipe_at(self, step: int) -> Recipe | None:
        """The recipe with which the step after `step` is made; None before the first one."""
        held = [recipe for since, recipe in self.recipes if since <= step]
        return held[-1] if held else None

    def next_change(self, step: int) -> int | None:
        """The next step after which another recipe holds: decided before, replayed now."""
        return min((since for since, _ in self.recipes if since > step), default=None)


def read_history(folder: RunFolder) -> History:
    """Reads a run's decisions from its events."""
    events = store.read_lines(folder.events, Event)
    recipes: list[tuple[int, Recipe]] = []
    for line in events:
        if isinstance(line, RecipeSet):
            # Decided after the run went back: what an earlier session decided for later is void.
            recipes = [made for made in recipes if made[0] < line.step]
            recipes.append((line.step, line.recipe))
    extended = [line.epochs for line in events if isinstance(line, Extended)]
    started = [line.versions for line in events if isinstance(line, Started)]
    turns = [line for line in events if isinstance(line, Started | Finished)]
    return History(
        recipes=tuple(recipes),
        epochs=extended[-1] if extended else None,
        versions=started[-1] if started else None,
        is_finished=bool(turns) and isinstance(turns[-1], Finished),
    )
