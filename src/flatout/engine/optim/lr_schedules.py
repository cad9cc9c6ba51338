"""Learning-rate schedules by the step: up in a line for `warm_up` steps, then as the name says.

Each returns torch's LambdaLR: factors of the learning rates that the optimizer's groups were made
with. Use them with `schedule_every="step"`:

    schedule=lambda optimizer: schedules.cosine(optimizer, steps=1_000, warm_up=100)

The first update of a warm-up is made with 1 / warm_up of the rate, the last one with all of it.
After `steps` the rate stays at `floor`, so a run can be made longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from flatout.errors import UsageError


def constant(optimizer: Optimizer, *, warm_up: int) -> LambdaLR:
    """Warm-up, then the full rate.

    Args:
        optimizer: whose rates change.
        warm_up: steps of the warm-up.
    """
    return _after_warm_up(optimizer, warm_up, lambda step: 1.0)


def linear(optimizer: Optimizer, *, steps: int, warm_up: int = 0, floor: float = 0.0) -> LambdaLR:
    """Warm-up, then down in a line.

    Args:
        optimizer: whose rates change.
        steps: updates in all, warm-up included.
        warm_up: steps of the warm-up.
        floor: share of the rate that is left at the end.
    """
    return _after_warm_up(
        optimizer,
        warm_up,
        lambda step: floor + (1 - floor) * (1 - _progress(step, warm_up, steps)),
    )


def cosine(optimizer: Optimizer, *, steps: int, warm_up: int = 0, floor: float = 0.0) -> LambdaLR:
    """Warm-up, then down half a cosine.

    Source: Loshchilov and Hutter, "SGDR", https://arxiv.org/abs/1608.03983, equation 5.

    Args:
        optimizer: whose rates change.
        steps: updates in all, warm-up included.
        warm_up: steps of the warm-up.
        floor: share of the rate that is left at the end.
    """

    def factor(step: int) -> float:
        return floor + (1 - floor) * (1 + math.cos(math.pi * _progress(step, warm_up, steps))) / 2

    return _after_warm_up(optimizer, warm_up, factor)


def inverse_square_root(optimizer: Optimizer, *, warm_up: int) -> LambdaLR:
    """Warm-up, then down with one over the square root of the step; it has no end.

    Source: Vaswani et al., "Attention Is All You Need", https://arxiv.org/abs/1706.03762,
    equation 3, scaled so that the peak is the optimizer's rate.

    Args:
        optimizer: whose rates change.
        warm_up: steps of the warm-up, at least 1.

    Raises:
        UsageError: bad-experiment.
    """
    if warm_up < 1:
        raise UsageError(
            "bad-experiment",
            f"an inverse square root schedule needs a warm-up; `warm_up` is {warm_up}.",
            fix="use a warm_up of at least 1 step",
        )
    return _after_warm_up(optimizer, warm_up, lambda step: math.sqrt(warm_up / (step + 1)))


def trapezoid(
    optimizer: Optimizer, *, steps: int, warm_up: int = 0, decay: int, floor: float = 0.0
) -> LambdaLR:
    """Warm-up, then the full rate, and for the last `decay` steps down in a line.

    Args:
        optimizer: whose rates change.
        steps: updates in all, warm-up and decay included.
        warm_up: steps of the warm-up.
        decay: steps at the end in which the rate falls.
        floor: share of the rate that is left at the end.
    """
    begin = max(warm_up, steps - decay)
    return _after_warm_up(
        optimizer,
        warm_up,
        lambda step: floor + (1 - floor) * (1 - _progress(step, begin, steps)),
    )


def _progress(step: int, begin: int, end: int) -> float:
    """The fraction of the way from `begin` to `end`: 0 before, 1 behind."""
    return min(1.0, max(0.0, (step - begin) / max(1, end - begin)))


def _after_warm_up(optimizer: Optimizer, warm_up: int, factor: Callable[[int], float]) -> LambdaLR:
    return LambdaLR(
        optimizer, lambda step: (step + 1) / warm_up if step < warm_up else factor(step)
    )
