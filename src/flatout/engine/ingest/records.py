"""What a reader of a source gives: records, a few at a time, and what it leaves out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flatout.nouns.ingestion import Rejected

# Of the bad records of a piece, so many are kept with what they are; all are counted.
_MOST_KEPT = 1000
_CONTENT_LETTERS = 2000

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True)
class Records:
    """Rows as Arrow columns, and the key of each: SHA-256 of what decides its part.

    columns: an Arrow array for each column, in the order of the schema.
    size_bytes: about, in memory.
    """

    columns: Sequence[Any]
    keys: Sequence[bytes]
    size_bytes: int


@dataclass
class Bad:
    """The records of a piece that are left out."""

    kept: list[Rejected] = field(default_factory=list)
    num: int = 0

    def add(self, place: str, reason: str, content: str | None = None, *, count: int = 1) -> None:
        """Leaves a record out, or a block of them that cannot be read."""
        self.num += count
        if len(self.kept) < _MOST_KEPT:
            cut = content[:_CONTENT_LETTERS] if content is not None else None
            self.kept.append(Rejected(place=place, reason=reason, content=cut, count=count))


def key_of(content: bytes) -> bytes:
    """The key of a record that is these bytes."""
    return hashlib.sha256(content).digest()


def row_keys(values: Sequence[Sequence[Any]]) -> Iterator[bytes]:
    """The key of each row, from its values, column by column."""
    for row in zip(*values, strict=True):
        yield key_of(_ENCODER.encode(row))
