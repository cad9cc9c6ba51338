"""Trains with PyTorch alone, without flatout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import training_program
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

_VALIDATION_PART = 1000


class TorchTrainer:
    """Variant `plain` is the loop of a tutorial: a DataLoader, and torch's defaults in everything.

    `eager` gathers whole batches, with channels_last and fused optimizers; `compile` also compiles
    forward and backward with torch.compile.
    """

    def __init__(self, task: Any, arrays: Any) -> None:
        torch.set_num_threads(task.num_threads)
        torch.manual_seed(task.seed)
        self._task = task
        self._device = torch.device("cuda:0" if task.is_gpu else "cpu")
        self._model = _model(task)
        left = list(arrays.weights)
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.copy_(torch.from_numpy(left.pop(0)))
        self._model.to(self._device)
        is_plain = task.variant == "plain"
        if not is_plain:
            self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = _optimizer(task.optimizer, self._model.parameters(), is_plain)
        self._validation = torch.from_numpy(arrays.validation[0])
        data = [torch.from_numpy(one) for one in arrays.train]
        order = torch.from_numpy(arrays.order_SB).long()
        self._batches = _loaded(data, order) if is_plain else _gathered(data, order, self._device)
        self._loss = self._compute_loss
        if task.variant == "compile":
            self._loss = torch.compile(self._compute_loss)
        self.recipe = {
            "plain": "plain loop: DataLoader, eager, torch's defaults",
            "eager": "eager, channels_last",
            "compile": "torch.compile, channels_last",
        }[task.variant]

    def train(self, num_steps: int) -> None:
        """See FrameworkTrainer."""
        for _ in range(num_steps):
            inputs, targets = (one.to(self._device) for one in next(self._batches))
            self._optimizer.zero_grad()
            self._loss(inputs, targets).backward()
            self._optimizer.step()
        if self._task.is_gpu:
            torch.cuda.synchronize()

    @torch.no_grad()
    def outputs(self) -> np.ndarray:
        """See FrameworkTrainer."""
        self._model.eval()
        parts = [
            self._model(self._scaled(part.to(self._device))).cpu()
            for part in self._validation.split(_VALIDATION_PART)
        ]
        self._model.train()
        return torch.cat(parts).numpy()

    def peak_gpu_bytes(self) -> int | None:
        """See FrameworkTrainer."""
        return torch.cuda.max_memory_allocated()

    def _compute_loss(self, inputs: Any, targets: Any) -> Any:
        outputs = self._model(self._scaled(inputs))
        if self._task.is_classification:
            return functional.cross_entropy(outputs, targets.long())
        return functional.mse_loss(outputs, targets)

    def _scaled(self, inputs: Any) -> Any:
        if self._task.pixels is None:
            return inputs
        mean, deviation = self._task.pixels
        return (inputs.float() / 255 - mean) / deviation


def _model(task: Any) -> nn.Sequential:
    made: list[nn.Module] = []
    for kind, *sizes in task.layers:
        if kind == "conv":
            made.append(nn.Conv2d(*sizes))
        elif kind == "linear":
            made.append(nn.Linear(*sizes))
        elif kind == "relu":
            made.append(nn.ReLU())
        elif kind == "maxpool":
            made.append(nn.MaxPool2d(*sizes))
        elif kind == "flatten":
            made.append(nn.Flatten())
        elif kind == "dropout" and task.has_dropout:
            made.append(nn.Dropout(*sizes))
    return nn.Sequential(*made)


def _optimizer(options: Any, parameters: Any, is_plain: bool) -> Any:
    if options["name"] == "adam":
        is_fused = None if is_plain else True
        betas = tuple(options["betas"])
        return torch.optim.Adam(parameters, options["lr"], betas, options["eps"], fused=is_fused)
    return torch.optim.Adadelta(parameters, options["lr"], options["rho"], options["eps"])


def _loaded(data: Any, order: Any) -> Iterator[Any]:
    """By a DataLoader, sample by sample as it does."""
    rows = [row.tolist() for row in order]
    while True:
        yield from DataLoader(TensorDataset(*data), batch_sampler=rows)


def _gathered(data: Any, order: Any, device: Any) -> Iterator[Any]:
    held, rows = [one.to(device) for one in data], order.to(device)
    while True:
        for row in rows:
            yield [one.index_select(0, row) for one in held]


if __name__ == "__main__":
    training_program.main("torch", TorchTrainer)
