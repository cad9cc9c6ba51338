"""Training steps with JAX."""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp


def losses(problem: dict[str, Any], device: Any) -> list[float]:
    """The losses before the first step and after each, computed on a device."""
    with jax.default_device(device):
        images_nhwc = jnp.asarray(problem["images"], jnp.float32)[..., None]
        labels = jnp.asarray(problem["labels"])
        kernel_hwio = jnp.asarray(problem["kernel"], jnp.float32)[:, :, None, :]
        weights = (kernel_hwio, jnp.asarray(problem["matrix"], jnp.float32))

        def loss_of(weights: Any) -> Any:
            kernel_hwio, matrix = weights
            maps_nhwc = jnp.tanh(
                jax.lax.conv_general_dilated(
                    images_nhwc, kernel_hwio, (1, 1), "VALID",
                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                )
            )  # fmt: skip
            chances = jax.nn.log_softmax(maps_nhwc.reshape(len(labels), -1) @ matrix)
            return -jnp.mean(jnp.take_along_axis(chances, labels[:, None], axis=1))

        def take_step(weights: Any) -> Any:
            loss, gradients = jax.value_and_grad(loss_of)(weights)
            moved = jax.tree.map(
                lambda weight, gradient: weight - problem["lr"] * gradient, weights, gradients
            )
            return loss, moved

        step = jax.jit(take_step)
        values = []
        for _ in range(problem["steps"] + 1):
            loss, weights = step(weights)
            values.append(float(loss))
    return values


def main() -> None:
    """Reads the problem, prints what came out."""
    problem = json.load(sys.stdin)
    report: dict[str, Any] = {"version": jax.__version__}
    report["cpu"] = losses(problem, jax.devices("cpu")[0])
    if problem["device"] == "gpu":
        gpu = jax.devices("gpu")[0]
        report |= {"device_name": gpu.device_kind, "gpu": losses(problem, gpu)}
    print("\n" + json.dumps(report))


if __name__ == "__main__":
    main()
