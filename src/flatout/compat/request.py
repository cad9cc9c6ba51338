"""A request to `flatout setup`."""

from __future__ import annotations

from typing import Literal

import msgspec


class SetupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the options of `flatout setup` that decide what fits.

    frameworks: as typed: "torch", "torch==2.9.*". cards: names of another machine's cards, or
    "cpu" for none; empty for this machine.
    """

    frameworks: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    driver: str | None = None
    os: Literal["linux", "wsl2", "windows", "macos"] | None = None
    python: str | None = None
    cuda: str | None = None
    is_cpu: bool = False
    is_nightly: bool = False
    is_offline: bool = False
