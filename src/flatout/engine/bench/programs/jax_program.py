"""Trains with JAX.

Suffixes: S steps, B batch, N samples.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import training_program
from jax import lax

_VALIDATION_PART = 1000


class JaxTrainer:
    """A pure step, compiled by jax.jit with its state donated.

    Variant `scan` makes several steps in one compiled call; `step` makes one.
    """

    def __init__(self, task: Any, arrays: Any) -> None:
        device = jax.devices("gpu" if task.is_gpu else "cpu")[0]
        jax.config.update("jax_default_device", device)
        jax.config.update("jax_default_matmul_precision", "highest")
        self._task = task
        self._device = device
        self._steps = training_program.Steps(len(arrays.order_SB))
        self._order_SB = arrays.order_SB
        self._data = jax.device_put(arrays.train, device)
        self._validation = arrays.validation[0]
        weights = [
            jnp.asarray(weight)
            for weight in training_program.with_channels_last(task, arrays.weights)
        ]
        self._state = (weights, _first_moments(weights), jnp.zeros((), jnp.int32))
        self._key = jax.random.key(task.seed)
        step = functools.partial(_step, task)
        if task.variant == "scan":
            self._run = jax.jit(functools.partial(_scanned, step), donate_argnums=0)
            self.recipe = f"jax.jit, lax.scan of length {task.steps_per_call}, donated state"
        else:
            self._run = jax.jit(step, donate_argnums=0)
            self.recipe = "jax.jit of one step, donated state"
        self._forward = jax.jit(functools.partial(_outputs, task.layers, task.pixels))

    def train(self, num_steps: int) -> None:
        """See FrameworkTrainer."""
        size = self._task.steps_per_call if self._task.variant == "scan" else 1
        for _ in range(0, num_steps, size):
            rows = self._order_SB[self._steps.take(size)]
            rows = rows if self._task.variant == "scan" else rows[0]
            self._state = self._run(self._state, rows, self._data, self._key)
        jax.block_until_ready(self._state)

    def outputs(self) -> np.ndarray:
        """See FrameworkTrainer."""
        parts = range(0, len(self._validation), _VALIDATION_PART)
        return np.concatenate(
            [np.asarray(self._forward(self._state[0], self._validation[n : n + _VALIDATION_PART]))
             for n in parts]
        )  # fmt: skip

    def peak_gpu_bytes(self) -> int | None:
        """See FrameworkTrainer."""
        return (self._device.memory_stats() or {}).get("peak_bytes_in_use")


def _first_moments(weights: list[Any]) -> list[tuple[Any, Any]]:
    return [(jnp.zeros_like(weight), jnp.zeros_like(weight)) for weight in weights]


def _scanned(step: Any, state: Any, rows_SB: Any, data: Any, key: Any) -> Any:
    state, _ = lax.scan(lambda state, row: (step(state, row, data, key), None), state, rows_SB)
    return state


def _step(task: Any, state: Any, row_B: Any, data: Any, key: Any) -> Any:
    weights, moments, count = state
    inputs, targets = (jnp.take(one, row_B, axis=0) for one in data)
    key = jax.random.fold_in(key, count) if task.has_dropout else None

    def loss(weights: Any) -> Any:
        outputs = _outputs(task.layers, task.pixels, weights, inputs, key)
        if not task.is_classification:
            return jnp.mean((outputs - targets) ** 2)
        logs = jax.nn.log_softmax(outputs)
        return -jnp.mean(jnp.take_along_axis(logs, targets[:, None].astype(jnp.int32), axis=1))

    gradients = jax.grad(loss)(weights)
    update = _adam if task.optimizer["name"] == "adam" else _adadelta
    count = count + 1
    pairs = [
        update(task.optimizer, count, *each)
        for each in zip(weights, gradients, moments, strict=True)
    ]
    return [weight for weight, _ in pairs], [moment for _, moment in pairs], count


def _adam(options: Any, count: Any, weight: Any, gradient: Any, moments: Any) -> Any:
    beta1, beta2 = options["betas"]
    first = beta1 * moments[0] + (1 - beta1) * gradient
    second = beta2 * moments[1] + (1 - beta2) * gradient**2
    root = jnp.sqrt(second / (1 - beta2**count)) + options["eps"]
    return weight - options["lr"] * first / (1 - beta1**count) / root, (first, second)


def _adadelta(options: Any, count: Any, weight: Any, gradient: Any, moments: Any) -> Any:
    rho, eps = options["rho"], options["eps"]
    squares = rho * moments[0] + (1 - rho) * gradient**2
    change = jnp.sqrt(moments[1] + eps) / jnp.sqrt(squares + eps) * gradient
    changes = rho * moments[1] + (1 - rho) * change**2
    return weight - options["lr"] * change, (squares, changes)


def _outputs(layers: Any, pixels: Any, weights: Any, inputs: Any, key: Any = None) -> Any:
    """The network. key: for dropout; None leaves nothing out."""
    left, values = list(weights), inputs
    if pixels is not None:
        mean, deviation = pixels
        values = (values[:, 0, :, :, None].astype(jnp.float32) / 255 - mean) / deviation
    for number, (kind, *sizes) in enumerate(layers):
        if kind == "conv":
            values = lax.conv_general_dilated(
                values, left.pop(0), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ) + left.pop(0)
        elif kind == "linear":
            values = values @ left.pop(0) + left.pop(0)
        elif kind == "relu":
            values = jax.nn.relu(values)
        elif kind == "maxpool":
            window = (1, sizes[0], sizes[0], 1)
            values = lax.reduce_window(values, -jnp.inf, lax.max, window, window, "VALID")
        elif kind == "flatten":
            values = values.reshape(len(values), -1)
        elif kind == "dropout" and key is not None:
            keep = 1 - sizes[0]
            kept = jax.random.bernoulli(jax.random.fold_in(key, number), keep, values.shape)
            values = jnp.where(kept, values / keep, 0)
    return values


if __name__ == "__main__":
    training_program.main("jax", JaxTrainer)
