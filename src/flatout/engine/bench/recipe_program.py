"""Trains with flatout's own step and feed: `python -m flatout.engine.bench.recipe_program`.

It is asked and answers as the programs of other frameworks do.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import nn

from flatout.engine.bench.programs import training_program
from flatout.engine.bench.waiting import wait_for
from flatout.engine.experiment import Experiment
from flatout.engine.recipe.default_recipe import changed_recipe
from flatout.engine.runtime.device import chosen_device
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.session.step_kinds import shared_step
from flatout.engine.tuner.ab_timing import RecipeLoop
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.driver import Search, tuned_recipe
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.recipe import Recipe, recipe_fields
from flatout.schema.tuning import TuneRequest

_SEARCH_S = 40.0
_VALIDATION_PART = 1000


class RecipeTrainer:
    """A session under a recipe, by the same loop as a search measures.

    Variant `search` looks for the recipe first; `recipe` is given one.
    """

    def __init__(self, task: training_program.Task, arrays: training_program.Arrays) -> None:
        experiment = _experiment(task, arrays)
        device = chosen_device(task.device)
        fixed = {"precision": "fp32", "num_threads": task.num_threads, "device": task.device}
        found = _searched(experiment, task, fixed) if task.variant == "search" else None
        built = build(experiment, task.seed, task.device)
        own = found or changed_recipe(built.recipe(fixed), task.recipe)
        self.fields = {name: getattr(own, name).value for name in recipe_fields()}
        self.recipe = recipe_text(own, built.recipe(fixed))
        # For the whole process: it does nothing else.
        self._settings = process_settings(own)
        self._settings.__enter__()
        self._session = Session(built, own)
        timer = StepTimer(device)
        self._loop = RecipeLoop(self._session, shared_step(self._session, timer), timer)
        self._validation = torch.from_numpy(arrays.validation[0])
        self._scale = task.pixels

    def train(self, num_steps: int) -> None:
        """See FrameworkTrainer."""
        self._loop.run(num_steps)
        wait_for(self._session.device)

    @torch.no_grad()
    def outputs(self) -> np.ndarray:
        """See FrameworkTrainer."""
        with self._session.evaluated() as model:
            parts = self._validation.split(_VALIDATION_PART)
            return torch.cat([model(self._scaled(part)).cpu() for part in parts]).numpy()

    def peak_gpu_bytes(self) -> int | None:
        """See FrameworkTrainer."""
        return torch.cuda.max_memory_allocated()

    def _scaled(self, part: torch.Tensor) -> torch.Tensor:
        inputs = part.to(self._session.device)
        if self._scale is None:
            return inputs
        mean, deviation = self._scale
        return (inputs.float() / 255 - mean) / deviation


def recipe_text(recipe: Recipe, defaults: Recipe) -> str:
    """What a search has changed of the defaults."""
    changed = [
        f"{name}={getattr(recipe, name).value}"
        for name in recipe_fields()
        if getattr(recipe, name).value != getattr(defaults, name).value
    ]
    return f"flatout: {', '.join(changed) or 'the defaults'}"


def _experiment(task: training_program.Task, arrays: training_program.Arrays) -> Experiment:
    """The built-in experiment with the samples that all frameworks train on."""
    made = load_experiment(ExperimentSpec(name=task.experiment, parameters=task.parameters))
    inputs, targets = (torch.from_numpy(one) for one in arrays.train)

    def model() -> nn.Module:
        network = made.model()
        for module in network.modules():
            if isinstance(module, nn.Dropout) and not task.has_dropout:
                module.p = 0.0
        return network

    return dataclasses.replace(
        made, model=model, train_data=lambda: (inputs, targets), validation_data=None,
        schedule=None,
    )  # fmt: skip


def _searched(
    experiment: Experiment, task: training_program.Task, fixed: dict[str, Any]
) -> Recipe | None:
    search = Search(
        subject=TuningTask(
            experiment=experiment, seed=task.seed, device_name=task.device, fixed=fixed
        ),
        options=TuneRequest(mode="full", budget_s=_SEARCH_S),
        num_steps=None,
        request=StopRequest(),
        on_event=lambda event: None,
        folder=None,
    )
    found = tuned_recipe(search)
    release_memory()
    return found


if __name__ == "__main__":
    training_program.main("torch", RecipeTrainer)
