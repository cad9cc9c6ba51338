"""What flatout keeps on the disk, by kind."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal[
    "runs", "checkpoints", "searches", "recipes", "data", "environments", "compiled", "caches",
    "tools", "undo",
]  # fmt: skip
# What can be freed at once; the others have a command of their own.
FREEABLE: tuple[Kind, ...] = (
    "checkpoints", "searches", "recipes", "data", "environments", "compiled", "caches",
)  # fmt: skip


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of thing. num_bytes: what it takes on the disk; what is linked twice counts once.

    text: what it is. folder: where it lies.
    cost: what it means to free it. freeable: what of it can be freed now; freeable_bytes: its size.
    in_use: why the rest cannot, a line for each reason.
    """

    kind: Kind
    text: str
    folder: str
    num_items: int
    num_bytes: int
    cost: str
    freeable: tuple[str, ...] = ()
    freeable_bytes: int = 0
    in_use: tuple[str, ...] = ()


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """What was freed, by kind."""

    kinds: tuple[Kind, ...]
    num_bytes: int
