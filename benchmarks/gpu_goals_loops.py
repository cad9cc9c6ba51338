"""The contestants of gpu_goals.py: those of no_regret_loops.py, and two that compile."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from no_regret_loops import Plain, made
from torch import nn

from flatout.engine.experiment import Experiment
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import BuiltExperiment, build
from flatout.engine.tuner.baseline_loop import plain_loader
from flatout.schema.experiment_spec import ExperimentSpec

Timed = Callable[[int], float]


def contestant(request: dict[str, Any]) -> tuple[Timed, int]:
    """The timed updates of a contestant, and the samples in each.

    Args:
        request: model, settings, who, fields of the recipe, device.
    """
    spec = ExperimentSpec(name=request["model"], parameters=request["settings"])
    experiment = dataclasses.replace(load_experiment(spec), validation_data=None, early_stop=None)
    who = request["who"]
    device = request["device"]
    built = build(experiment, 0, device)
    if who == "max-autotune":
        return Plain(_compiled(built)).timed, experiment.batch_size
    if who == "pytorch-autotune":
        return _Autotuned(built).timed, experiment.batch_size
    fields = {"device": device, **request["fields"]} if who == "flatout" else None
    return made(who, built, fields).timed, experiment.batch_size


def _compiled(built: BuiltExperiment) -> BuiltExperiment:
    """The plain loop in bf16 with the whole model compiled, as in torch's documentation."""
    torch.set_float32_matmul_precision("high")
    model: Any = torch.compile(built.model, mode="max-autotune")
    return dataclasses.replace(built, model=model, experiment=_rounded(built))


class _Autotuned:
    """The loop that pytorch-autotune 2 documents, with the settings that it measured.

    It accepts batches of inputs and targets, and derives the loss from the kind of targets.
    """

    def __init__(self, built: BuiltExperiment) -> None:
        self._loader = plain_loader(built)
        self._device = built.device
        batch = next(iter(self._loader))
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise TypeError("pytorch-autotune takes batches of inputs and targets")
        experiment = built.experiment
        made_by = import_module("pytorch_autotune")
        self._result = made_by.autotune(
            built.model, tuple(batch), optimizer=experiment.optimizer, device=str(built.device),
            cache=False, verbose=False,
        )  # fmt: skip
        self._batches: Iterator[Any] = iter(())

    def timed(self, num_updates: int) -> float:
        """Seconds per update."""
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        for _ in range(num_updates):
            batch = next(self._batches, None)
            if batch is None:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            self._result.step(*(tensor.to(self._device) for tensor in batch))
        torch.cuda.synchronize()
        return (time.perf_counter() - begin_s) / num_updates


def _rounded(built: BuiltExperiment) -> Experiment:
    """The experiment with its loss under bf16 autocast."""
    loss = built.experiment.loss
    assert loss is not None

    def in_bf16(model: nn.Module, batch: Any) -> Any:
        with torch.autocast(built.device.type, torch.bfloat16):
            return loss(model, batch)

    return dataclasses.replace(built.experiment, loss=in_bf16)
