"""What a person changes when a run is taken up again: crosses the border as `--change`."""

from __future__ import annotations

from typing import Any

import msgspec


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Recipe fields by name with their values, and the epochs in all; None keeps the length."""

    fixed: dict[str, Any] = {}
    epochs: int | None = None
