"""Groups of parameters for an optimizer: which of them decay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from flatout.errors import UsageError, nearest


def decayed_groups(
    named: Iterable[tuple[str, nn.Parameter]], weight_decay: float, *, without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Two parameter groups: matrices and convolutions decay; biases and norms do not.

    Args:
        named: names and parameters, as an experiment with `named_parameters=True` gets them.
        weight_decay: of those that decay.
        without: parameters whose name contains one of these texts do not decay either:
            `without=("embedding",)`.

    Returns:
        The groups, as torch's optimizers take them.

    Raises:
        UsageError: bad-experiment, where one of the texts is in no name.
    """
    pairs = list(named)
    for text in without:
        if not any(text in name for name, _ in pairs):
            parts = {part for name, _ in pairs for part in name.split(".")}
            raise UsageError(
                "bad-experiment",
                f"`without`: no parameter has `{text}` in its name.",
                fix=nearest(text, sorted(parts)),
            )
    decays = [p.ndim > 1 and not any(text in name for text in without) for name, p in pairs]
    parameters = [parameter for _, parameter in pairs]
    return [
        {
            "params": [p for p, does in zip(parameters, decays, strict=True) if does],
            "weight_decay": weight_decay,
        },
        {
            "params": [p for p, does in zip(parameters, decays, strict=True) if not does],
            "weight_decay": 0.0,
        },
    ]
