"""What a search has found before, for another use of the same training."""

from __future__ import annotations

from typing import Any

from flatout.engine.session.session import BuiltExperiment
from flatout.engine.tuner.cache_key import identity
from flatout.system.store import recipe_cache
from flatout.tune.cache import cache_key, search_identity
from flatout.tune.compiling import for_steps


def stored_changes(built: BuiltExperiment, fixed: dict[str, Any]) -> dict[str, Any]:
    """The recipe fields that a search before has found for `flatout train`, beyond the defaults.

    It checks first whether they are still faster, which is not done here.

    Args:
        built: whose training it is.
        fixed: recipe fields that the user has set.
    """
    experiment = built.experiment
    # `flatout train` does not search for these.
    if experiment.step is not None or built.facts.data_kind == "iterable":
        return {}
    facts = search_identity(identity(built, fixed), "default", has_processes=True)
    known = recipe_cache.recall(cache_key(facts))
    if known is None or known.decision.is_default:
        return {}
    num_steps = built.num_updates(experiment.epochs, experiment.steps)
    decision = for_steps(known.decision, num_steps, built.facts.batch_size)
    changes: dict[str, Any] = {}
    # The first two are the plain loop and the defaults.
    for rung in decision.rungs[2:]:
        changes |= rung.changes if rung.gain is not None else {}
    return {name: value for name, value in changes.items() if name not in fixed}
