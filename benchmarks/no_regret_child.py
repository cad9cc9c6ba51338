"""One process of no_regret.py: builds contestants of one model, and times them when asked.

Speaks JSON, a line each way:

    {"make": NAME, "fields": {...} or null}         builds a contestant; with fields, flatout's loop
    {"time": NAME, "seconds": 0.2}                  times about so many seconds of it
    {"screen": SECONDS, "numerics": "default"}      looks at the whole grid

What cannot be built or run is answered with `problem`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
import warnings
from typing import Any

from disturbance import others_busy_s
from no_regret_loops import Contestant, made
from no_regret_models import MODELS, Model, grid, plain_fields

from flatout.engine.experiment import Experiment
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import BuiltExperiment, build
from flatout.errors import FlatoutError
from flatout.schema.experiment_spec import ExperimentSpec

# How many of the grid are looked at a second time, and for how much longer; what is this much
# slower than the best so far is not looked at even once for the whole time.
_SECOND_LOOK, _LONGER, _HOPELESS = 12, 3, 2.0


def main() -> None:
    """Answers the lines on stdin until there are no more."""
    warnings.filterwarnings("ignore")
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    workbench = Workbench(MODELS[sys.argv[1]])
    for line in sys.stdin:
        print(json.dumps(workbench.answer(json.loads(line))), file=answers, flush=True)
    workbench.close()


class Workbench:
    """The contestants of one model in this process.

    Args:
        model: whose.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._experiment = _without_validation(_loaded(model))
        self._first = build(self._experiment, 0, None)
        self._contestants: dict[str, Contestant] = {}
        self._update_s: dict[str, float] = {}

    def answer(self, question: dict[str, Any]) -> Any:
        """The answer to a request, or the problem."""
        try:
            if "make" in question:
                return self._make(question["make"], question["fields"])
            if "time" in question:
                return self._time(question["time"], question["seconds"])
            return self._screen(question["screen"], question["numerics"])
        except (RuntimeError, TypeError, ValueError, FlatoutError) as error:
            return {"problem": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        """Ends the processes that read data."""
        for contestant in self._contestants.values():
            contestant.close()

    def _make(self, name: str, fields: dict[str, Any] | None) -> dict[str, float]:
        whole = None if fields is None else plain_fields(self._first.facts) | fields
        self._contestants[name] = made(name, self._built(), whole)
        self._update_s[name] = self._contestants[name].timed(2)
        return {"update_s": self._update_s[name]}

    def _time(self, name: str, seconds: float) -> dict[str, float]:
        num_updates = max(1, round(seconds / self._update_s[name]))
        others_s, begin_s = others_busy_s(), time.perf_counter()
        update_s = self._contestants[name].timed(num_updates)
        took_s = time.perf_counter() - begin_s
        return {"update_s": update_s, "others": (others_busy_s() - others_s) / took_s}

    def _screen(self, seconds: float, numerics: str) -> dict[str, Any]:
        """The grid, fastest recipe first, and the recipes that cannot be carried out."""
        found, problems = [], []
        best_s = math.inf
        for fields in grid(self._model, self._first.facts, self._optimizers(), numerics):
            one = {"fields": fields, **self._look(fields, seconds, best_s)}
            (problems if "problem" in one else found).append(one)
            best_s = min(best_s, one.get("update_s", math.inf))
        found.sort(key=lambda one: one["update_s"])
        for one in found[:_SECOND_LOOK]:
            one |= self._look(one["fields"], _LONGER * seconds, math.inf)
        found = [one for one in found if "problem" not in one]
        found[:_SECOND_LOOK] = sorted(found[:_SECOND_LOOK], key=lambda one: one["update_s"])
        return {"found": found, "problems": problems}

    def _look(self, fields: dict[str, Any], seconds: float, best_s: float) -> dict[str, Any]:
        answer = self.answer({"make": "looked at", "fields": fields})
        if answer.get("update_s", math.inf) < _HOPELESS * best_s:
            answer = self.answer({"time": "looked at", "seconds": seconds})
        if "looked at" in self._contestants:
            self._contestants.pop("looked at").close()
        return answer

    def _built(self) -> BuiltExperiment:
        data = self._first.train_data
        experiment = dataclasses.replace(self._experiment, train_data=lambda: data)
        return build(experiment, 0, None)

    def _optimizers(self) -> tuple[str, ...]:
        offered = self._first.optimizers.only.defaults
        fused = ("fused",) if self._first.facts.can_be_fused else ()
        return ("own", *(("foreach",) if "foreach" in offered else ()), *fused)


def _loaded(model: Model) -> Experiment:
    file = str(model.file) if model.file else None
    return load_experiment(ExperimentSpec(name=model.name, file=file, parameters=model.parameters))


def _without_validation(experiment: Experiment) -> Experiment:
    return dataclasses.replace(experiment, validation_data=None, early_stop=None)


if __name__ == "__main__":
    main()
