"""The contestants of no_regret.py: a few updates at a time, timed after a warm-up.

`plain`, `accelerate` and `lightning` are what users write; `recipe` is flatout's own loop. All
have the same model, loss, optimizer, batch size and schedule, those of the experiment.
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flatout.engine.model.ema import WeightAverage
from flatout.engine.optim.schedule_rehearsal import built_schedulers
from flatout.engine.recipe.default_recipe import changed_recipe
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import BuiltExperiment, Session, process_settings
from flatout.engine.session.step_kinds import shared_step
from flatout.engine.step.captured_step import NUM_WARM_UPS
from flatout.engine.tuner.ab_timing import RecipeLoop, stepped
from flatout.engine.tuner.baseline_loop import BaselineLoop, plain_loader

# The first update makes the optimizer's state and prepares what follows.
_FIRST_UPDATES = 2


class Contestant(Protocol):
    """A training loop."""

    def timed(self, num_updates: int) -> float:
        """Seconds per update of so many updates, after some that are not timed."""
        ...

    def close(self) -> None:
        """Ends the processes that read data for it."""
        ...


class Plain:
    """The loop of the tutorials."""

    def __init__(self, built: BuiltExperiment) -> None:
        self._loop = BaselineLoop(built)
        self._loop.run(_FIRST_UPDATES)

    def timed(self, num_updates: int) -> float:
        """See Contestant."""
        self._loop.run(1)
        return _timed(self._loop.run, num_updates)

    def close(self) -> None:
        """See Contestant."""


class Recipe:
    """flatout's loop with a recipe.

    Args:
        built: the experiment's objects; they belong to this loop from now on.
        fields: recipe fields; the others have their defaults.
    """

    def __init__(self, built: BuiltExperiment, fields: dict[str, Any]) -> None:
        self._recipe = changed_recipe(built.recipe({}), fields)
        # A loader's workers have filled their queue while others were measured: it is emptied
        # before the clock starts, or the first updates would cost nothing.
        self._num_queued = self._recipe.loader_workers.value * self._recipe.loader_prefetch.value
        with process_settings(self._recipe):
            session = Session(built, self._recipe)
            timer = StepTimer(session.device)
            self._loop = RecipeLoop(session, shared_step(session, timer), timer)
            is_captured = self._recipe.capture.value == "step"
            self._loop.run(NUM_WARM_UPS + 1 if is_captured else _FIRST_UPDATES)

    def timed(self, num_updates: int) -> float:
        """See Contestant."""
        with process_settings(self._recipe):
            self._loop.run(1 + self._num_queued)
            return _timed(self._loop.run, num_updates)

    def close(self) -> None:
        """See Contestant."""
        self._loop.close()


class Accelerate:
    """The plain loop with Accelerate's three changes."""

    def __init__(self, built: BuiltExperiment) -> None:
        self._built = built
        self._accelerator = import_module("accelerate").Accelerator(cpu=built.device.type == "cpu")
        self._model, self._optimizer, self._loader = self._accelerator.prepare(
            built.model.train(), built.optimizers.only, plain_loader(built)
        )
        self._rest = _Rest(built)
        self._batches: Iterator[Any] = iter(())
        self._run(_FIRST_UPDATES)

    def timed(self, num_updates: int) -> float:
        """See Contestant."""
        self._run(1)
        return _timed(self._run, num_updates)

    def _run(self, num_updates: int) -> None:
        clip_norm = self._built.experiment.clip_norm
        for _ in range(num_updates):
            batch = next(self._batches, None)
            if batch is None:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            self._optimizer.zero_grad()
            self._accelerator.backward(_mean_loss(self._built, self._model, batch))
            if clip_norm is not None:
                self._accelerator.clip_grad_norm_(self._model.parameters(), clip_norm)
            self._optimizer.step()
            self._rest.end_update()

    def close(self) -> None:
        """See Contestant."""


class Lightning:
    """Lightning's Trainer with its fast settings; logger, checkpoints, summary, bar off."""

    def __init__(self, built: BuiltExperiment) -> None:
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning.*")
        self._lightning = import_module("lightning")
        self._built = built
        self._loader = plain_loader(built)
        self._begun_at: list[float] = []
        # Where the clock is read, a GPU's work must be done.
        self._waits_at: set[int] = set()
        self._module = self._as_module()

    def _as_module(self) -> Any:
        built, rest, begun_at = self._built, _Rest(self._built), self._begun_at
        waits_at = self._waits_at

        class Module(self._lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.model = built.model

            def on_train_batch_start(self, batch: Any, index: int) -> None:
                if len(begun_at) in waits_at:
                    _wait()
                begun_at.append(time.perf_counter())

            def training_step(self, batch: Any, index: int) -> Tensor:
                return _mean_loss(built, self.model, batch)

            def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
                rest.end_update()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return built.optimizers.only

        return Module()

    def timed(self, num_updates: int) -> float:
        """See Contestant: from the beginning of one update to the beginning of a later one."""
        self._begun_at.clear()
        self._waits_at |= {_FIRST_UPDATES, _FIRST_UPDATES + num_updates}
        trainer = self._lightning.Trainer(
            max_steps=_FIRST_UPDATES + num_updates + 1,
            accelerator="cpu" if self._built.device.type == "cpu" else "gpu",
            devices=1,
            gradient_clip_val=self._built.experiment.clip_norm,
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        trainer.fit(self._module, self._loader)
        first, last = self._begun_at[_FIRST_UPDATES], self._begun_at[_FIRST_UPDATES + num_updates]
        return (last - first) / num_updates

    def close(self) -> None:
        """See Contestant."""


class _Rest:
    """What an experiment needs after an update, for loops that do not know about it."""

    def __init__(self, built: BuiltExperiment) -> None:
        experiment = built.experiment
        self._schedule: Any = None
        if experiment.schedule_every == "step":
            total_steps = built.schedule_steps
            made, _ = built_schedulers(experiment, built.optimizers.only, total_steps)
            self._schedule = made.get("schedule")
        decay = experiment.ema
        self._average = WeightAverage(built.model, decay) if decay is not None else None

    def end_update(self) -> None:
        """Schedule and moving average, where there are."""
        if self._schedule is not None and not stepped(self._schedule):
            self._schedule = None
        if self._average is not None:
            self._average.update()


def _mean_loss(built: BuiltExperiment, model: nn.Module, batch: Any) -> Tensor:
    result = built.experiment.loss(model, batch)
    return result[0] / result[1] if isinstance(result, tuple) else result


def _timed(run: Callable[[int], Any], num_updates: int) -> float:
    _wait()
    begin_s = time.perf_counter()
    run(num_updates)
    _wait()
    return (time.perf_counter() - begin_s) / num_updates


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def made(name: str, built: BuiltExperiment, fields: dict[str, Any] | None) -> Contestant:
    """The contestant of that name, warmed up; with recipe fields, flatout's loop."""
    if fields is not None:
        return Recipe(built, fields)
    with contextlib.redirect_stdout(None):
        return {"plain": Plain, "accelerate": Accelerate, "lightning": Lightning}[name](built)
