"""Learning rates as numbers on the device, for steps that are launched without Python.

Schedules still compute in Python floats. A number is brought to the device before the launch
whose steps read it, in 32 bits: 24 of mantissa, where Python has 53.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# What is copied to the device, or is not used by the update.
_NOT_FROZEN = ("params", "lr", "initial_lr")


class DeviceLr:
    """The rates of an optimizer's groups: a row for each step of a launch.

    Args:
        optimizer: whose groups they are.
        device: where they are read.
        num_steps: rows.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device, num_steps: int) -> None:
        self._groups = optimizer.param_groups
        self._is_cuda = device.type == "cuda"
        self._table = torch.zeros(num_steps, len(self._groups), device=device)
        self._cells: list[tuple[Tensor, ...]] = [row.unbind() for row in self._table.unbind()]
        self._written_rows: list[tuple[float, ...]] = [()] * num_steps

    def now(self) -> tuple[float, ...]:
        """The present learning rates, as set by the schedule."""
        return tuple(group["lr"] for group in self._groups)

    def put(self, rows: list[tuple[float, ...]]) -> None:
        """Brings rates to the first rows, behind all that was launched before."""
        if self._written_rows[: len(rows)] == rows:
            return
        # Newly pinned each time: torch keeps the memory from being used again until it is copied.
        host = torch.tensor(rows, dtype=torch.float32, pin_memory=self._is_cuda)
        self._table[: len(rows)].copy_(host, non_blocking=True)
        self._written_rows[: len(rows)] = rows

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[None]:
        """The optimizer reads its rates from a row; afterwards it has Python's floats again."""
        own = self.now()
        for group, cell in zip(self._groups, self._cells[number], strict=True):
            group["lr"] = cell
        try:
            yield
        finally:
            for group, rate in zip(self._groups, own, strict=True):
                group["lr"] = rate

    def frozen(self) -> list[list[Any]]:
        """All other numbers of the groups, which a graph has as they were when it was recorded."""
        return [
            [value for name, value in group.items() if name not in _NOT_FROZEN]
            for group in self._groups
        ]
