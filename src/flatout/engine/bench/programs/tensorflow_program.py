"""Trains with TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import training_program

_VALIDATION_PART = 1000


class TensorFlowTrainer:
    """A tf.function that loops over a tf.data pipeline, with the fused kernels of optimizers.

    Variant `xla` compiles the step; `graph` leaves it to TensorFlow's own kernels.
    """

    def __init__(self, task: Any, arrays: Any) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(task.num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(task.num_threads)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        if task.is_gpu and not tf.config.list_physical_devices("GPU"):
            raise RuntimeError("tf.config.list_physical_devices('GPU') is empty")
        tf.config.experimental.enable_tensor_float_32_execution(False)
        tf.random.set_seed(task.seed)
        is_xla = task.variant == "xla"
        self.recipe = f"tf.data, tf.function{' with jit_compile (XLA)' if is_xla else ''}"
        self._task = task
        self._validation = arrays.validation[0]
        with tf.device("/GPU:0" if task.is_gpu else "/CPU:0"):
            weights = training_program.with_channels_last(task, arrays.weights)
            self._weights = [tf.Variable(weight) for weight in weights]
            self._moments = [
                (tf.Variable(tf.zeros_like(one)), tf.Variable(tf.zeros_like(one)))
                for one in weights
            ]
            self._count = tf.Variable(0.0)
        self._batches = iter(_batches(arrays))
        step = tf.function(self._step, jit_compile=True) if is_xla else self._step
        self._run = tf.function(_looped(step))
        self._forward = tf.function(lambda inputs: self._outputs(inputs, False), jit_compile=is_xla)

    def train(self, num_steps: int) -> None:
        """See FrameworkTrainer."""
        self._run(self._batches, tf.constant(num_steps))
        # A copy to the host waits for the device.
        self._count.numpy()

    def outputs(self) -> np.ndarray:
        """See FrameworkTrainer."""
        parts = range(0, len(self._validation), _VALIDATION_PART)
        return np.concatenate(
            [self._forward(tf.constant(self._validation[n : n + _VALIDATION_PART])).numpy()
             for n in parts]
        )  # fmt: skip

    def peak_gpu_bytes(self) -> int | None:
        """See FrameworkTrainer."""
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def _step(self, inputs: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            outputs = self._outputs(inputs, self._task.has_dropout)
            if self._task.is_classification:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels=tf.cast(targets, tf.int32), logits=outputs
                )
            else:
                losses = tf.square(outputs - targets)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self._weights)
        self._count.assign_add(1.0)
        options = self._task.optimizer
        for weight, gradient, moments in zip(self._weights, gradients, self._moments, strict=True):
            handles = [one.handle for one in (weight, *moments)]
            if options["name"] == "adam":
                beta1, beta2 = options["betas"]
                tf.raw_ops.ResourceApplyAdam(
                    var=handles[0], m=handles[1], v=handles[2], grad=gradient, lr=options["lr"],
                    beta1=beta1, beta2=beta2, epsilon=options["eps"],
                    beta1_power=beta1**self._count, beta2_power=beta2**self._count,
                )  # fmt: skip
            else:
                tf.raw_ops.ResourceApplyAdadelta(
                    var=handles[0], accum=handles[1], accum_update=handles[2], grad=gradient,
                    lr=options["lr"], rho=options["rho"], epsilon=options["eps"],
                )  # fmt: skip

    def _outputs(self, inputs: Any, has_dropout: bool) -> Any:
        left, values = list(self._weights), inputs
        if self._task.pixels is not None:
            mean, deviation = self._task.pixels
            values = (tf.cast(values[:, 0, :, :, None], tf.float32) / 255 - mean) / deviation
        for number, (kind, *sizes) in enumerate(self._task.layers):
            if kind == "conv":
                values = tf.nn.conv2d(values, left.pop(0), strides=1, padding="VALID")
                values = tf.nn.bias_add(values, left.pop(0))
            elif kind == "linear":
                values = tf.nn.bias_add(values @ left.pop(0), left.pop(0))
            elif kind == "relu":
                values = tf.nn.relu(values)
            elif kind == "maxpool":
                values = tf.nn.max_pool2d(values, sizes[0], sizes[0], "VALID")
            elif kind == "flatten":
                values = tf.reshape(values, [-1, int(np.prod(values.shape[1:]))])
            elif kind == "dropout" and has_dropout:
                # XLA ignores the seed of stateful ones: https://www.tensorflow.org/xla/known_issues.
                seed = tf.stack([self._task.seed * 100 + number, tf.cast(self._count, tf.int32)])
                values = tf.nn.experimental.stateless_dropout(values, sizes[0], seed)
        return values


def _batches(arrays: Any) -> Any:
    """Batches in their order, gathered by tf.data while the step runs."""
    inputs, targets = (tf.constant(one) for one in arrays.train)
    order = tf.data.Dataset.from_tensor_slices(arrays.order_SB).repeat()
    gathered = order.map(
        lambda row: (tf.gather(inputs, row), tf.gather(targets, row)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return gathered.prefetch(tf.data.AUTOTUNE)


def _looped(step: Any) -> Any:
    def run(batches: Any, num_steps: Any) -> None:
        for _ in tf.range(num_steps):
            step(*next(batches))

    return run


if __name__ == "__main__":
    training_program.main("tensorflow", TensorFlowTrainer)
