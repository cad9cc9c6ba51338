"""The result of a search for a recipe, as a document for other programs."""

from __future__ import annotations

import msgspec

from flatout.schema.recipe import Recipe
from flatout.schema.run import Utilization
from flatout.schema.tuning import Decision


class TunedRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe with the search it came from; is_from_cache: it was found before and still holds.

    utilization: of the machine by the recipe; None where FLOPs could not be counted.
    code: a program with that recipe, or the settings of another tool, where one was requested.
    """

    folder: str
    recipe: Recipe
    decision: Decision
    unit: str
    is_from_cache: bool
    utilization: Utilization | None = None
    code: str | None = None
