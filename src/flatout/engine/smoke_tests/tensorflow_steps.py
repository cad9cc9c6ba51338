"""Training steps with TensorFlow."""

import json
import sys
from typing import Any

import tensorflow as tf


def losses(problem: dict[str, Any], device: str) -> list[float]:
    """The losses before the first step and after each, computed on a device."""
    with tf.device(device):
        images_nhwc = tf.constant(problem["images"], tf.float32)[..., None]
        labels = tf.constant(problem["labels"])
        kernel = tf.Variable(tf.constant(problem["kernel"], tf.float32)[:, :, None, :])
        matrix = tf.Variable(tf.constant(problem["matrix"], tf.float32))
        all_losses = []
        for _ in range(problem["steps"] + 1):
            with tf.GradientTape() as tape:
                maps_nhwc = tf.tanh(tf.nn.conv2d(images_nhwc, kernel, strides=1, padding="VALID"))
                logits = tf.reshape(maps_nhwc, [len(problem["images"]), -1]) @ matrix
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                )
            all_losses.append(float(loss))
            for variable, gradient in zip(
                (kernel, matrix), tape.gradient(loss, (kernel, matrix)), strict=True
            ):
                variable.assign_sub(problem["lr"] * gradient)
    return all_losses


def main() -> None:
    """Reads the problem, prints what came out."""
    problem = json.load(sys.stdin)
    report: dict[str, Any] = {"version": tf.__version__}
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        # Otherwise it takes all of a card that a screen or another program needs too.
        tf.config.experimental.set_memory_growth(gpu, True)
    report["cpu"] = losses(problem, "/CPU:0")
    if problem["device"] == "gpu":
        if not gpus:
            sys.exit("tf.config.list_physical_devices('GPU') is empty")
        details = tf.config.experimental.get_device_details(gpus[0])
        report |= {"device_name": details.get("device_name"), "gpu": losses(problem, "/GPU:0")}
    print("\n" + json.dumps(report))


if __name__ == "__main__":
    main()
