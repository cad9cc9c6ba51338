"""What decays in several of the experiments: weights in the optimizer, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def decayed_groups(
    named: Iterable[tuple[str, nn.Parameter]], weight_decay: float
) -> list[dict[str, Any]]:
    """Parameter groups: matrices and convolutions decay, norms and biases do not."""
    parameters = [parameter for _, parameter in named]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def warmed_up_cosine(
    optimizer: Optimizer, *, warm_up: int, steps: int, floor: float = 0.0
) -> LambdaLR:
    """Learning rate up in a line for `warm_up` steps, then down half a cosine to `floor` of it."""

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        progress = min(1.0, (step - warm_up) / max(1, steps - warm_up))
        return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, factor)
