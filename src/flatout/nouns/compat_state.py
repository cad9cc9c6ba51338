"""What `flatout compat` answers."""

from __future__ import annotations

import msgspec


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one framework. newest: a version; num_builds: rows about it."""

    framework: str
    newest: str
    num_builds: int


class CompatState(msgspec.Struct, frozen=True, kw_only=True):
    """The tables in use.

    read: when the shipped ones were; updated: when the indexes were asked, None: never.
    num_added: builds that the indexes had beside those. not_reached: what an update could not ask.
    """

    read: str
    age_days: int
    updated: str | None
    num_added: int
    num_cards: int
    tables: tuple[TableState, ...]
    not_reached: tuple[str, ...] = ()
