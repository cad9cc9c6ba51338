"""What a search has decided before, for another use of the same training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flatout.schema.recipe import Choice
from flatout.schema.tuning import Decision
from flatout.system.store import recipe_cache
from flatout.tune.cache import cache_key
from flatout.tune.compiling import for_steps


def stored_decision(
    identities: Iterable[dict[str, Any]], num_steps: int | None, batch_size: int
) -> Decision | None:
    """What the first search of these has decided, that is known.

    Args:
        identities: of searches (`search_identity`).
        num_steps: of the training: compiling must pay in it.
        batch_size: samples in a step.
    """
    for identity in identities:
        known = recipe_cache.recall(cache_key(identity))
        if known is not None:
            return for_steps(known.decision, num_steps, batch_size)
    return None


def measured_fields(decision: Decision, fixed: Mapping[str, Any]) -> dict[str, Choice[Any]]:
    """The recipe fields of a decision, each with what it gained.

    Args:
        decision: of a search.
        fixed: fields that the user has set, which it leaves as they are.
    """
    # The first two are the plain loop and the defaults.
    fields = saving_fields(decision.rungs[0].changes) if decision.rungs else {}
    if decision.is_default:
        return fields
    for rung in decision.rungs[2:]:
        gain = rung.gain
        for name, value in rung.changes.items():
            is_given = name in fixed or (name in fields and fields[name].value == value)
            if gain is not None and not is_given:
                fields[name] = Choice(
                    value=value,
                    why=f"{rung.name}: x{gain.middle:.2f}",
                    origin="measured",
                    evidence=f"95 % interval {gain.low:.2f} to {gain.high:.2f}",
                )
    return fields


def saving_fields(changes: Mapping[str, Any]) -> dict[str, Choice[Any]]:
    """The fields without which the plain loop does not fit into memory."""
    why = "the plain loop does not fit into memory without it"
    return {
        name: Choice(value=value, why=why, origin="measured") for name, value in changes.items()
    }
