"""The training steps that verify an environment, and the check of their losses.

All frameworks train on the same problem: a convolution, tanh and a linear layer classify sixteen
small pictures, by plain gradient descent on the cross entropy.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import msgspec

from flatout.errors import RunFailed
from flatout.schema.environment import SmokeTestResult

STEPS = 3
# Relative. On CPUs it is rounding; GPUs may use TF32, which keeps 10 bits of each factor (1e-3).
CPU_TOLERANCE = 1e-4
GPU_TOLERANCE = 1e-2
# The losses of the problem in double precision: before the first step, and after each.
# A test recomputes them.
EXPECTED = (1.3861366373413433, 1.2267890296683928, 1.124275003662689, 1.056659975067529)

_PICTURES, _SIDE, _MAPS, _CLASSES = 16, 12, 8, 4


class ProofOutput(msgspec.Struct, frozen=True):
    """The output of a program of `engine/smoke_tests`. checks: the framework's own check."""

    version: str
    cpu: tuple[float, ...]
    gpu: tuple[float, ...] | None = None
    device_name: str | None = None
    checks: tuple[str, ...] = ()


def problem(device: Literal["cpu", "gpu"]) -> dict[str, Any]:
    """The input of a program of `engine/smoke_tests`: pictures, labels, weights, learning rate."""
    inner = _SIDE - 2
    return {
        "device": device,
        "steps": STEPS,
        "lr": 0.05,
        "images": [
            [[_wave(1.3 * n + 0.7 * i + (0.2 + 0.1 * (n % _CLASSES)) * j * i) for j in range(_SIDE)]
             for i in range(_SIDE)] for n in range(_PICTURES)
        ],
        "labels": [n % _CLASSES for n in range(_PICTURES)],
        "kernel": [
            [[0.3 * _wave(5.0 * a + 3.0 * b + 1.7 * c) for c in range(_MAPS)] for b in range(3)]
            for a in range(3)
        ],
        "matrix": [
            [0.05 * _wave(0.9 * k + 2.1 * c) for c in range(_CLASSES)]
            for k in range(inner * inner * _MAPS)
        ],
    }  # fmt: skip


def judge(text: str, device: Literal["cpu", "gpu"], at: str) -> SmokeTestResult:
    """Checks the losses that a program printed.

    Args:
        text: its stdout; the last line counts, since frameworks print messages.
        device: where the steps should run.
        at: the time.

    Raises:
        RunFailed: wrong-result, training-step-failed.
    """
    lines = text.strip().splitlines()
    try:
        # Python's own JSON parser accepts NaN; msgspec follows the standard and does not.
        output = msgspec.convert(json.loads(lines[-1] if lines else ""), ProofOutput)
    except (ValueError, msgspec.ValidationError) as error:
        raise RunFailed(
            "training-step-failed",
            "the training steps printed no losses.",
            because=f"{error}: {text.strip()[-200:]!r}",
            fix="flatout doctor --deep; or without a GPU: --cpu",
        ) from error
    cpu_deviation = _deviation(output.cpu, EXPECTED)
    _require(cpu_deviation, CPU_TOLERANCE, output.cpu, "the CPU", EXPECTED)
    if device == "cpu":
        return SmokeTestResult(
            device="cpu", version=output.version, losses=output.cpu,
            deviation=cpu_deviation, tolerance=CPU_TOLERANCE, at=at, checks=output.checks,
        )  # fmt: skip
    losses = output.gpu or ()
    deviation = _deviation(losses, output.cpu)
    _require(deviation, GPU_TOLERANCE, losses, output.device_name or "the GPU", output.cpu)
    return SmokeTestResult(
        device="gpu", device_name=output.device_name, version=output.version, losses=losses,
        deviation=deviation, tolerance=GPU_TOLERANCE, at=at, checks=output.checks,
    )  # fmt: skip


def _wave(phase: float) -> float:
    return math.sin(phase)


def _deviation(losses: tuple[float, ...], right: tuple[float, ...]) -> float:
    if len(losses) != len(right) or not all(map(math.isfinite, losses)):
        return math.inf
    return max(abs(loss - other) / abs(other) for loss, other in zip(losses, right, strict=True))


def _require(
    deviation: float,
    tolerance: float,
    losses: tuple[float, ...],
    where: str,
    right: tuple[float, ...],
) -> None:
    if deviation <= tolerance:
        return
    raise RunFailed(
        "wrong-result",
        f"training steps on {where} produced wrong losses.",
        because=f"got {_texts(losses)}; expected {_texts(right)}, within {tolerance:.0e}",
        fix="flatout doctor --deep, then try another version or --cpu",
    )


def _texts(losses: tuple[float, ...]) -> str:
    return ", ".join(f"{loss:.5g}" for loss in losses) or "none"
