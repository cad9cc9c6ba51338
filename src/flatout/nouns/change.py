"""What a person changes when a run is taken up again: crosses the border as `--change`."""

from __future__ import annotations

from typing import Any

import msgspec


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Recipe fields by name with their values, the epochs in all, and what is to be left free of
    the device's memory; None keeps it as it is.

    is_after_kill: the kernel ended the process before, because memory had run out.
    """

    fixed: dict[str, Any] = {}
    epochs: int | None = None
    leave_free_bytes: int | None = None
    is_after_kill: bool = False
