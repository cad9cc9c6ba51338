"""The output of a source's reader: records, a few at a time, and the skipped ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flatout.schema.ingest_protocol import Rejected

# This many bad records of a piece are kept in detail; all are counted.
_MOST_KEPT = 1000
_CONTENT_LETTERS = 2000

_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True)
class Records:
    """Rows as Arrow columns, and the key of each: a SHA-256 that decides its part.

    columns: an Arrow array for each column, in the order of the schema.
    size_bytes: approximate size in memory.
    """

    columns: Sequence[Any]
    keys: Sequence[bytes]
    size_bytes: int


@dataclass
class RejectedRecords:
    """The records of a piece that are left out."""

    samples: list[Rejected] = field(default_factory=list)
    num: int = 0

    def add(
        self, location: str, reason: str, content: str | None = None, *, count: int = 1
    ) -> None:
        """Leaves out a record, or a block of records that cannot be read."""
        self.num += count
        if len(self.samples) < _MOST_KEPT:
            cut = content[:_CONTENT_LETTERS] if content is not None else None
            self.samples.append(Rejected(place=location, reason=reason, content=cut, count=count))


def key_of(content: bytes) -> bytes:
    """The key of a record with these bytes."""
    return hashlib.sha256(content).digest()


def row_keys(values: Sequence[Sequence[Any]]) -> Iterator[bytes]:
    """The key of each row, from its values, column by column."""
    for row in zip(*values, strict=True):
        yield key_of(_ENCODER.encode(row))
