"""The recipe fields found by a search for `flatout train`, as far as a profile uses them."""

from __future__ import annotations

from typing import Any

from flatout.engine.session.session import BuiltExperiment
from flatout.engine.tuner.cache_key import identity
from flatout.engine.tuner.stored_recipe import measured_fields, stored_decision
from flatout.errors import UsageError
from flatout.schema.recipe import Choice
from flatout.schema.units import counted_text, seconds_text
from flatout.tune.cache import search_identity

# Longer than everything else that a profile does.
_LONGEST_READING_S = 20.0


def stored_fields(built: BuiltExperiment, fixed: dict[str, Any]) -> dict[str, Choice[Any]]:
    """The recipe fields that a search for `flatout train` has found, beyond the defaults.

    A training checks first whether they are still faster, which is not done here.

    Args:
        built: whose training it is.
        fixed: recipe fields that the user has set.
    """
    experiment = built.experiment
    # `flatout train` does not search for these.
    if experiment.step is not None or built.facts.data_kind == "iterable":
        return {}
    facts = search_identity(identity(built, fixed), "default", has_processes=True)
    epochs, steps = built.length
    if built.length == (None, None):
        epochs, steps = experiment.epochs, experiment.steps
    num_steps = built.num_updates(epochs, steps)
    decision = stored_decision([facts], num_steps, built.facts.batch_size)
    return {} if decision is None else measured_fields(decision, fixed)


def usable_fields(
    fields: dict[str, Choice[Any]], built: BuiltExperiment
) -> tuple[dict[str, Choice[Any]], str | None]:
    """What a profile uses of a recipe, and why not all of it.

    It would read all samples that a training keeps, before it begins.
    """
    if "data_path" not in fields or fields["data_path"].value != "cached":
        return fields, None
    left = {name: choice for name, choice in fields.items() if name != "data_path"}
    try:
        reading_s = built.caching.sample_s * len(built.train_data)
    except UsageError as error:
        return left, f"data_path=cached was left out: {error.because or error.problem}"
    if reading_s <= _LONGEST_READING_S:
        return fields, None
    samples = counted_text(len(built.train_data), "sample")
    return left, (
        f"data_path=cached was left out: reading {samples} would take {seconds_text(reading_s)}. "
        "Data is read as in the first epoch"
    )
