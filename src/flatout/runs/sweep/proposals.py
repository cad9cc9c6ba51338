"""What to try next, and what to stop early: Optuna's samplers and pruners."""

from __future__ import annotations

import importlib
import warnings
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import nan
from typing import Any

import msgspec

from flatout.runs.sweep.space import grid
from flatout.schema.experiment_spec import Value
from flatout.schema.sweep import Choices, Range, SweepHeader, SweepTrial
from flatout.system.optional_packages import load_package

# Below it, Optuna counts every parameter as important as any other.
_FEWEST_FOR_IMPORTANCE = 4
# Under it Optuna notes parameters that it has not chosen itself.
_GIVEN = "fixed_params"
_STATES = {"finished": "COMPLETE", "pruned": "PRUNED", "stopped": "PRUNED", "failed": "FAIL"}


class Proposals:
    """The trials of a sweep as Optuna sees them.

    Its study minimizes: a metric to maximize is reported with its sign changed, since it
    and its direction may be known only when the first trial has started.

    Args:
        header: of the sweep; replaced once its metric is known.
        trials: by number; those that have not ended can be reported again.

    Raises:
        UsageError: optuna-not-installed, bad-sweep-range.
    """

    def __init__(self, header: SweepHeader, trials: Iterable[SweepTrial]) -> None:
        # Only here: it loads numpy and SQLAlchemy, which nothing but a sweep needs.
        self._optuna = load_package("optuna-not-installed", "a sweep", "optuna", extra="sweep")
        self.header = header
        self._grid = grid(header.space) if header.sampler == "grid" else []
        with _quiet(self._optuna):
            # Optuna lowers a bound that no step reaches, with a warning.
            self._space = {name: self._distribution(one) for name, one in header.space.items()}
            # By its name and the number of a trial, Hyperband chooses a bracket.
            self._study = self._optuna.create_study(
                study_name=header.id, pruner=self._pruner(), sampler=self._sampler(0)
            )
        self._trials: dict[int, Any] = {}
        # Optuna numbers them in this order.
        for one in trials:
            if one.has_ended:
                self._add(one)
            else:
                self._ask(one.trial, one.parameters)

    def ask(self, number: int) -> dict[str, Value]:
        """Chooses the parameters of a new trial, the next by number."""
        return self._ask(number, self._grid[number - 1] if self._grid else None)

    def report(self, number: int, validation: int, value: float | None) -> bool:
        """Reports the metric of a trial's validation, from 1 on; gives whether to stop it.

        A value that is not finite is None.
        """
        trial = self._trials[number]
        with _quiet(self._optuna):
            trial.report(self._cost(value), validation)
            return bool(trial.should_prune())

    def tell(self, one: SweepTrial) -> SweepTrial:
        """Reports the end of a trial; gives it with what the pruner has noted."""
        with _quiet(self._optuna):
            frozen = self._study.tell(self._trials.pop(one.trial), *self._ending(one))
        noted = {name: note for name, note in frozen.system_attrs.items() if name != _GIVEN}
        return msgspec.structs.replace(one, state=noted)

    def importances(self) -> dict[str, float]:
        """The share of each parameter in what makes a trial good; empty if too few have ended.

        Source: PED-ANOVA (Watanabe et al. 2023, https://arxiv.org/abs/2304.10255), which Optuna
        computes without further packages.
        """
        complete = self._optuna.trial.TrialState.COMPLETE
        values = [one.value for one in self._study.get_trials(deepcopy=False, states=(complete,))]
        if len(values) < _FEWEST_FOR_IMPORTANCE or len(set(values)) < 2:
            return {}
        importance = importlib.import_module("optuna.importance")
        with _quiet(self._optuna):
            found = importance.get_param_importances(
                self._study, evaluator=importance.PedAnovaImportanceEvaluator()
            )
        return {name: float(share) for name, share in found.items()}

    def _ask(self, number: int, given: dict[str, Value] | None) -> dict[str, Value]:
        with _quiet(self._optuna):
            self._study.sampler = self._sampler(number)
            if given is not None:
                self._study.enqueue_trial(given)
            trial = self._study.ask(self._space)
        assert trial.number == number - 1, "trials are asked for in the order of their numbers"
        self._trials[number] = trial
        return {name: trial.params[name] for name in self._space}

    def _add(self, one: SweepTrial) -> None:
        value, state = self._ending(one)
        self._study.add_trial(self._optuna.trial.create_trial(
            state=state, value=value, params=one.parameters, distributions=self._space,
            intermediate_values=dict(enumerate(map(self._cost, one.reports), 1)),
            system_attrs=one.state,
        ))  # fmt: skip

    def _ending(self, one: SweepTrial) -> tuple[float | None, Any]:
        """The cost and the state of a trial that has ended."""
        state = getattr(self._optuna.trial.TrialState, _STATES[one.status])
        return self._cost(one.value) if one.status == "finished" else None, state

    def _cost(self, value: float | None) -> float:
        return nan if value is None else self.header.cost(value)

    def _sampler(self, number: int) -> Any:
        """The sampler for one trial: it draws the same, whatever was drawn before."""
        samplers = self._optuna.samplers
        seed = zlib.crc32(f"{self.header.training.seed or 0}/{number}".encode())
        if self.header.sampler == "tpe":
            return samplers.TPESampler(seed=seed, constant_liar=self.header.parallel > 1)
        return samplers.RandomSampler(seed=seed)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        made = {
            "none": pruners.NopPruner, "median": pruners.MedianPruner,
            "halving": pruners.SuccessiveHalvingPruner, "hyperband": pruners.HyperbandPruner,
        }  # fmt: skip
        return made[self.header.pruner]()

    def _distribution(self, one: Range | Choices) -> Any:
        made = self._optuna.distributions
        if isinstance(one, Choices):
            return made.CategoricalDistribution(one.values)
        if one.is_int:
            return made.IntDistribution(
                int(one.low), int(one.high), log=one.is_log, step=int(one.step or 1)
            )
        return made.FloatDistribution(one.low, one.high, log=one.is_log, step=one.step)


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Optuna logs every trial, and warns of what it calls experimental."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
