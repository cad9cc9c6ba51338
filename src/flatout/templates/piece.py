"""A piece of a new experiment's file."""

from __future__ import annotations

import msgspec


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a file.

    imports: lines to be sorted in among those of the other pieces.
    text: definitions, with `$name` where something is filled in.
    words: what this piece fills into the others.
    """

    imports: tuple[str, ...] = ()
    text: str = ""
    words: dict[str, str] = {}
