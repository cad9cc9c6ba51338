"""Whether several ranks hold a model in parts: arithmetic on bytes, without tensors."""

from __future__ import annotations

from flatout.schema.recipe import Choice, Sharding
from flatout.schema.units import bytes_text, percent_text

# Of what is free; the rest is for activations, which are unknown before the first step.
_SHARE = 0.8


def state_bytes(weight_bytes: int, trained_bytes: int, num_moments: int) -> int:
    """The bytes of an unsharded model's state on each rank.

    Args:
        weight_bytes: of all weights. trained_bytes: of those that are trained: they have a
            gradient, which is copied once for the other ranks.
        num_moments: numbers that the optimizer keeps for each.
    """
    return weight_bytes + (2 + num_moments) * trained_bytes


def default_sharding(needed_bytes: int, free_bytes: int | None) -> Choice[Sharding]:
    """The default for sharding the model.

    Args:
        needed_bytes: what a rank holds of a whole one. free_bytes: on the fullest GPU; None where
            the ranks share the computer's memory.
    """
    if free_bytes is None:
        return Choice(value="none", why="on a CPU, ranks that hold the whole model wait less often")
    needs = f"weights, gradients and moments take {bytes_text(needed_bytes)} on each rank"
    of_free = f"{percent_text(_SHARE, 0)} of the {bytes_text(free_bytes)} free on a GPU"
    if needed_bytes <= _SHARE * free_bytes:
        return Choice(value="none", why=f"{needs}, within {of_free}", origin="estimated")
    return Choice(value="full", why=f"{needs}, more than {of_free}", origin="estimated")
