"""The search for a recipe in this process: for notebooks and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatout.engine.experiment import Experiment, require_experiment
from flatout.engine.runtime.device import prepare_products
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.driver import Search, tuned_recipe
from flatout.errors import RunFailed
from flatout.schema.recipe import Recipe, check_field
from flatout.schema.run_lines import Event, Tried, Tuned
from flatout.schema.tuning import Decision, Numerics, TuneRequest


@dataclass(frozen=True)
class TunedHere:
    """The result of a search in this process.

    Args:
        recipe: every field with its reason.
        decision: what was tried, what it gained, what was refused.
    """

    recipe: Recipe
    decision: Decision

    @property
    def use(self) -> dict[str, Any]:
        """The fields that the search has chosen, as `train(experiment, use=...)` takes them."""
        return {} if self.decision.is_default else dict(self.decision.changes)


def tune(
    experiment: Experiment,
    *,
    use: dict[str, Any] | None = None,
    seed: int = 0,
    numerics: Numerics = "default",
    budget_s: float | None = None,
    is_quiet: bool = False,
) -> TunedHere:
    """Finds the fastest correct recipe for an experiment by measuring, in this process.

    The experiment exists only here, so no fresh processes confirm what was found; on a file,
    `flatout tune` is surer.

    Args:
        experiment: what to train.
        use: recipe fields by name, with the values to fix.
        seed: of weights and order.
        numerics: how far results may differ by rounding: `strict`, `default` or `fast`.
        budget_s: seconds the search may take; None: 54, or 12 plain steps where that is more.
        is_quiet: does not print the trials as they come.

    Returns:
        The recipe, and how it was found.

    Raises:
        UsageError: the request is invalid.
        RunFailed: the plain loop could not be run.
    """
    require_experiment(experiment, "tune")
    prepare_products()
    fixed = {field: check_field(field, value) for field, value in (use or {}).items()}
    events: list[Event] = []

    def on_event(line: Event) -> None:
        events.append(line)
        if not is_quiet and isinstance(line, Tried):
            _print(line)

    search = Search(
        subject=TuningTask(
            experiment=experiment, seed=seed, device_name=fixed.get("device"), fixed=fixed
        ),
        options=TuneRequest(mode="full", numerics=numerics, budget_s=budget_s, is_only=True),
        num_steps=None,
        request=StopRequest(),
        on_event=on_event,
        folder=None,
    )
    recipe = _searched(search)
    decision = next((line.decision for line in events if isinstance(line, Tuned)), None)
    if recipe is None or decision is None:
        raise RunFailed(
            "search-not-finished",
            "the search ended before it found a recipe.",
            fix="give it more time: tune(experiment, budget_s=120)",
        )
    return TunedHere(recipe=recipe, decision=decision)


def _searched(search: Search) -> Recipe | None:
    """The result of a search; exceptions of the experiment become findings, as in a training."""
    try:
        return tuned_recipe(search)
    except (Exception, SystemExit) as error:
        known_error = to_flatout_error(error)
        if known_error is None or known_error is error:
            raise
        raise known_error from error


def _print(line: Tried) -> None:
    gain, name = line.result.speedup, line.result.trial.candidate.name
    if gain is None:
        problem = line.result.problem
        print(f"{name}: {problem.problem if problem else 'could not be measured'}")
    else:
        print(f"{name}: x{gain.middle:.2f} [{gain.low:.2f}, {gain.high:.2f}]")
