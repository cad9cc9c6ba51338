"""Trains with PaddlePaddle."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import training_program

_VALIDATION_PART = 1000


class PaddleTrainer:
    """Paddle's layers and optimizers.

    Variant `to_static` turns forward and backward into a static graph; `dynamic` does not.
    """

    def __init__(self, task: Any, arrays: Any) -> None:
        paddle.set_device("gpu:0" if task.is_gpu else "cpu")
        paddle.seed(task.seed)
        self._task = task
        self._model = _model(task)
        left = list(arrays.weights)
        for parameter in self._model.parameters():
            value = left.pop(0)
            # Of linear layers (in, out), unlike torch.
            parameter.set_value(np.ascontiguousarray(value.T if value.ndim == 2 else value))
        self._optimizer = _optimizer(task.optimizer, self._model.parameters())
        self._data = tuple(paddle.to_tensor(one) for one in arrays.train)
        self._validation = paddle.to_tensor(arrays.validation[0])
        self._order = [paddle.to_tensor(row) for row in arrays.order_SB]
        self._steps = training_program.Steps(len(self._order))
        self._loss = _Loss(self._model, task.pixels, task.is_classification)
        if task.variant == "to_static":
            self._loss = paddle.jit.to_static(self._loss)
        self.recipe = "paddle.jit.to_static" if task.variant == "to_static" else "dynamic graph"
        self._model.train()

    def train(self, num_steps: int) -> None:
        """See FrameworkTrainer."""
        for row in self._steps.take(num_steps):
            indices = self._order[row]
            # Not index_select, which has no kernel for bytes.
            inputs, targets = (paddle.gather(one, indices) for one in self._data)
            loss = self._loss(inputs, targets)
            loss.backward()
            self._optimizer.step()
            self._optimizer.clear_grad()
        if self._task.is_gpu:
            paddle.device.synchronize()

    def outputs(self) -> np.ndarray:
        """See FrameworkTrainer."""
        pixels = self._task.pixels
        self._model.eval()
        with paddle.no_grad():
            parts = range(0, len(self._validation), _VALIDATION_PART)
            values = [
                self._model(_scaled(pixels, self._validation[n : n + _VALIDATION_PART])).numpy()
                for n in parts
            ]
        self._model.train()
        return np.concatenate(values)

    def peak_gpu_bytes(self) -> int | None:
        """See FrameworkTrainer."""
        return int(paddle.device.cuda.max_memory_allocated())


class _Loss(paddle.nn.Layer):  # type: ignore[misc]
    """Forward and loss together, so that both are in the static graph."""

    def __init__(self, model: Any, pixels: Any, is_classification: bool) -> None:
        super().__init__()
        self._model = model
        self._pixels = pixels
        self._is_classification = is_classification

    def forward(self, inputs: Any, targets: Any) -> Any:
        outputs = self._model(_scaled(self._pixels, inputs))
        if self._is_classification:
            return paddle.nn.functional.cross_entropy(outputs, targets.astype("int64"))
        return paddle.nn.functional.mse_loss(outputs, targets)


def _scaled(pixels: Any, inputs: Any) -> Any:
    if pixels is None:
        return inputs
    mean, deviation = pixels
    return (inputs.astype("float32") / 255 - mean) / deviation


def _model(task: Any) -> Any:
    made = []
    for kind, *sizes in task.layers:
        if kind == "conv":
            made.append(paddle.nn.Conv2D(sizes[0], sizes[1], sizes[2]))
        elif kind == "linear":
            made.append(paddle.nn.Linear(sizes[0], sizes[1]))
        elif kind == "relu":
            made.append(paddle.nn.ReLU())
        elif kind == "maxpool":
            made.append(paddle.nn.MaxPool2D(sizes[0]))
        elif kind == "flatten":
            made.append(paddle.nn.Flatten())
        elif kind == "dropout" and task.has_dropout:
            made.append(paddle.nn.Dropout(sizes[0]))
    return paddle.nn.Sequential(*made)


def _optimizer(options: Any, parameters: Any) -> Any:
    if options["name"] == "adam":
        beta1, beta2 = options["betas"]
        return paddle.optimizer.Adam(
            options["lr"], beta1, beta2, options["eps"], parameters=parameters
        )
    return paddle.optimizer.Adadelta(
        options["lr"], options["eps"], options["rho"], parameters=parameters
    )


if __name__ == "__main__":
    training_program.main("paddlepaddle", PaddleTrainer)
