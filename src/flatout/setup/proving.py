"""The training steps that prove an environment, and whether what came out is right.

The problem is one for all frameworks: a convolution, tanh and a linear layer tell sixteen small
pictures apart, by plain gradient descent on the cross entropy.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import msgspec

from flatout.errors import RunFailed
from flatout.nouns.made_environment import Proof

STEPS = 3
# Relative. Of CPUs it is rounding; GPUs may use TF32, which keeps 10 bits of each factor (1e-3).
CPU_TOLERANCE = 1e-4
GPU_TOLERANCE = 1e-2
# The losses of the problem in double precision: before the first step, and after each.
# A test computes them again.
EXPECTED = (1.3861366373413433, 1.2267890296683928, 1.124275003662689, 1.056659975067529)

_PICTURES, _SIDE, _MAPS, _CLASSES = 16, 12, 8, 4


class ProofOutput(msgspec.Struct, frozen=True):
    """What a program of `engine/proofs` prints. checks: what the framework's own check says."""

    version: str
    cpu: tuple[float, ...]
    gpu: tuple[float, ...] | None = None
    device_name: str | None = None
    checks: tuple[str, ...] = ()


def problem(device: Literal["cpu", "gpu"]) -> dict[str, Any]:
    """What a program of `engine/proofs` is given: pictures, labels, weights, learning rate."""
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


def judge(text: str, device: Literal["cpu", "gpu"], at: str) -> Proof:
    """Whether the losses that a program told are right.

    Args:
        text: its stdout; the last line counts, since frameworks print things.
        device: where the steps were to run.
        at: when.

    Raises:
        RunFailed: wrong-result, training-step-failed.
    """
    lines = text.strip().splitlines()
    try:
        # Python's own reader knows NaN, which msgspec, as the standard has it, does not.
        told = msgspec.convert(json.loads(lines[-1] if lines else ""), ProofOutput)
    except (ValueError, msgspec.ValidationError) as error:
        raise RunFailed(
            "training-step-failed",
            "training steps ran, and gave no losses.",
            because=f"{error}: {text.strip()[-200:]!r}",
            fix="flatout doctor --deep; or without a GPU: --cpu",
        ) from error
    cpu_deviation = _deviation(told.cpu, EXPECTED)
    _require(cpu_deviation, CPU_TOLERANCE, told.cpu, "the CPU", EXPECTED)
    if device == "cpu":
        return Proof(
            device="cpu", version=told.version, losses=told.cpu,
            deviation=cpu_deviation, tolerance=CPU_TOLERANCE, at=at, checks=told.checks,
        )  # fmt: skip
    losses = told.gpu or ()
    deviation = _deviation(losses, told.cpu)
    _require(deviation, GPU_TOLERANCE, losses, told.device_name or "the GPU", told.cpu)
    return Proof(
        device="gpu", device_name=told.device_name, version=told.version, losses=losses,
        deviation=deviation, tolerance=GPU_TOLERANCE, at=at, checks=told.checks,
    )  # fmt: skip


def _wave(phase: float) -> float:
    return math.sin(phase)


def _deviation(losses: tuple[float, ...], right: tuple[float, ...]) -> float:
    if len(losses) != len(right) or not all(map(math.isfinite, losses)):
        return math.inf
    return max(abs(one - other) / abs(other) for one, other in zip(losses, right, strict=True))


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
        f"training steps on {where} gave wrong losses.",
        because=f"{_texts(losses)}; right is {_texts(right)}, within {tolerance:.0e}",
        fix="flatout doctor --deep, then try another version or --cpu",
    )


def _texts(losses: tuple[float, ...]) -> str:
    return ", ".join(f"{loss:.5g}" for loss in losses) or "none"
