"""A measured number with all it takes to judge it: one form for training, monitor and bench."""

from __future__ import annotations

from typing import Any

import msgspec


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """name and unit in base units; value is a median or a reading; spread is (low, high)."""

    name: str
    value: float
    unit: str
    step: int | None = None
    at: str | None = None
    samples: tuple[float, ...] = ()
    spread: tuple[float, float] | None = None
    conditions: dict[str, Any] = {}
