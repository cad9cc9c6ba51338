"""flatout's recipe for a workload: a stored one, one from a short search, or the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatout.engine.experiment import Experiment
from flatout.engine.tensors.nested import tensors_in
from flatout.engine.tuner.api import tune
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.engine.tuner.stored_recipe import stored_decision
from flatout.errors import FlatoutError
from flatout.schema.run_protocol import RecipeChosen, RecipeRequest
from flatout.schema.tuning import Decision, Rung
from flatout.schema.units import rate_text, seconds_text
from flatout.tune.cache import search_identity
from flatout.tune.candidates import base_candidate


def chosen_recipe(experiment: Experiment, request: RecipeRequest) -> RecipeChosen:
    """The recipe, with where it is from."""
    task = TuningTask(experiment=experiment, device_name=request.device, fixed=request.fixed)
    builder = CandidateBuilder(task)
    num_steps, batch_size = _num_steps(builder), builder.setting.batch_size
    decision = stored_decision(_identities(builder, request), num_steps, batch_size)
    if decision is not None:
        return _chosen(builder, decision, "stored by a search")
    if request.budget_s is None:
        return _defaults(builder, "flatout's defaults, without a search")
    try:
        found = tune(
            experiment, use={**request.fixed, "device": request.device}, budget_s=request.budget_s,
            is_quiet=True,
        )  # fmt: skip
    except FlatoutError as error:
        return _defaults(builder, f"flatout's defaults; the search failed: {error.problem}")
    budget = seconds_text(request.budget_s)
    return _chosen(builder, found.decision, f"from a search of {budget}")


def _identities(builder: CandidateBuilder, request: RecipeRequest) -> Iterator[dict[str, Any]]:
    """Searches in fresh processes first; those with the device given, and those without."""
    device = {"device": request.device}
    for has_processes in (True, False):
        for fixed in ({**request.fixed, **device}, request.fixed):
            facts = {**builder.identity, "fixed": fixed}
            yield search_identity(facts, "default", has_processes=has_processes)


def _num_steps(builder: CandidateBuilder) -> int | None:
    """Updates in the whole training: compiling must pay in it."""
    experiment = builder.subject.experiment
    if experiment.steps is not None or experiment.epochs is None:
        return experiment.steps
    num_samples = len(next(tensors_in(builder.train_data)))
    return experiment.epochs * -(-num_samples // experiment.batch_size)


def _chosen(builder: CandidateBuilder, decision: Decision, origin: str) -> RecipeChosen:
    if decision.is_default:
        return _defaults(builder, f"flatout's defaults: nothing faster ({origin})")
    return RecipeChosen(
        changes=dict(decision.changes),
        text=f"{_fields_text(builder, decision.changes)} ({origin})",
        ladder="; ".join(map(_rung_text, decision.rungs)),
    )


def _rung_text(rung: Rung) -> str:
    if rung.gain is None:
        return f"{rung.name} {rate_text(rung.samples_per_s)}"
    gain = rung.gain
    return f"+ {rung.name} x{gain.middle:.2f} [{gain.low:.2f}, {gain.high:.2f}]"


def _defaults(builder: CandidateBuilder, text: str) -> RecipeChosen:
    changes = dict(base_candidate(builder.setting).changes)
    return RecipeChosen(changes=changes, text=f"{_fields_text(builder, changes)} ({text})")


def _fields_text(builder: CandidateBuilder, changes: dict[str, Any]) -> str:
    """The fields in which a recipe differs from the plain loop."""
    plain = builder.plain_recipe()
    differing = [
        f"{name}={value}"
        for name, value in changes.items()
        if name != "device" and getattr(plain, name).value != value
    ]
    return ", ".join(differing) or "as the plain loop"
