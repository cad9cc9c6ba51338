"""Files that flatout keeps on the disk, by kind."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.system.paths import StateName

Kind = Literal[
    "runs", "checkpoints", "searches", "recipes", "data", "environments", "compiled", "watched",
    "results", "caches", "samples", "tools", "undo",
]  # fmt: skip
# What `--free` accepts; the others have their own commands.
FREEABLE: tuple[Kind, ...] = (
    "checkpoints", "searches", "recipes", "data", "environments", "compiled", "watched", "results",
    "caches", "samples",
)  # fmt: skip
# What everything in the state folder is counted as.
STATE_KINDS: dict[StateName, Kind] = {
    "bench": "results", "changes": "undo", "crashes": "caches", "failed-start": "caches",
    "indexes": "caches", "interpreters.txt": "tools", "launches": "watched", "limits": "results",
    "lr": "results", "monitor": "samples", "profiles": "results", "recipes": "recipes",
    "runs": "runs", "servers": "tools", "sweeps": "runs", "tunes": "searches",
    "watched": "watched", "web": "caches",
}  # fmt: skip


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of data. num_bytes: its size on the disk; files with several hard links count once.

    text: what it is. folder: where it is.
    cost: what freeing it costs. freeable: paths that can be freed now; freeable_bytes: their size.
    in_use: why the rest cannot be freed, one line per reason.
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
    """Freed space, by kind."""

    kinds: tuple[Kind, ...]
    num_bytes: int
