"""An installed package that matters to training."""

from __future__ import annotations

import msgspec


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """A framework by its installed metadata, never imported; build like "cu130" or "cpu"."""

    name: str
    version: str
    build: str | None = None
