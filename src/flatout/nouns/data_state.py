"""A data set that flatout knows, and whether it is here."""

from __future__ import annotations

import msgspec


class DataState(msgspec.Struct, frozen=True, kw_only=True):
    """folder: where it was found, else None."""

    name: str
    title: str
    licence: str
    source: str
    size_bytes: int
    folder: str | None
