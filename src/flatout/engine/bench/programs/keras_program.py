"""Trains with Keras 3. The variant is its backend, which KERAS_BACKEND names."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import training_program


class KerasTrainer:
    """`Model.fit` with a compiled step; a call of it is a block of steps."""

    def __init__(self, task: Any, arrays: Any) -> None:
        if keras.backend.backend() != task.variant:
            raise RuntimeError(f"Keras has loaded {keras.backend.backend()}, not {task.variant}")
        keras.utils.set_random_seed(task.seed)
        self._task = task
        self._arrays = arrays
        self._steps = training_program.Steps(len(arrays.order_SB))
        self._inputs, self._validation = (
            one[0].transpose(0, 2, 3, 1) if one[0].ndim == 4 else one[0]
            for one in (arrays.train, arrays.validation)
        )
        self._model = _model(task, self._inputs.shape[1:])
        self._model.set_weights(training_program.with_channels_last(task, arrays.weights))
        is_classes = task.is_classification
        self._model.compile(
            optimizer=_optimizer(task.optimizer),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            if is_classes
            else keras.losses.MeanSquaredError(),
            steps_per_execution=task.steps_per_call,
            # XLA of its backends; torch's is torch.compile.
            jit_compile=True,
        )
        self.recipe = (
            f"Model.fit, {task.variant} backend, jit_compile, "
            f"steps_per_execution {task.steps_per_call}"
        )

    def train(self, num_steps: int) -> None:
        """See FrameworkTrainer."""
        rows = self._arrays.order_SB[self._steps.take(num_steps)]
        samples = rows.reshape(-1)
        self._model.fit(
            self._inputs[samples], self._arrays.train[1][samples],
            batch_size=rows.shape[1], epochs=1, shuffle=False, verbose=0,
        )  # fmt: skip

    def outputs(self) -> np.ndarray:
        """See FrameworkTrainer."""
        return np.asarray(self._model.predict(self._validation, batch_size=1000, verbose=0))

    def peak_gpu_bytes(self) -> int | None:
        """See FrameworkTrainer."""
        if self._task.variant != "jax":
            return None
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def _model(task: Any, shape: tuple[int, ...]) -> Any:
    made: list[Any] = [keras.Input(shape, dtype="uint8" if task.pixels else "float32")]
    if task.pixels:
        mean, deviation = task.pixels
        made.append(keras.layers.Rescaling(1 / (255 * deviation), offset=-mean / deviation))
    for kind, *sizes in task.layers:
        if kind == "conv":
            made.append(keras.layers.Conv2D(sizes[1], sizes[2]))
        elif kind == "linear":
            made.append(keras.layers.Dense(sizes[1]))
        elif kind == "relu":
            made.append(keras.layers.ReLU())
        elif kind == "maxpool":
            made.append(keras.layers.MaxPooling2D(sizes[0]))
        elif kind == "flatten":
            made.append(keras.layers.Flatten())
        elif kind == "dropout" and task.has_dropout:
            made.append(keras.layers.Dropout(sizes[0]))
    return keras.Sequential(made)


def _optimizer(options: Any) -> Any:
    if options["name"] == "adam":
        beta1, beta2 = options["betas"]
        return keras.optimizers.Adam(options["lr"], beta1, beta2, options["eps"])
    return keras.optimizers.Adadelta(options["lr"], options["rho"], options["eps"])


if __name__ == "__main__":
    training_program.main("keras", KerasTrainer)
