"""Making shards of a source: what is requested, the pieces of the work, and what comes of it.

A source is cut into pieces by what is in it alone, never by who works on them. So each piece
becomes the same shards wherever it is carried out, and only what has changed is carried out again.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from flatout.errors import UsageError
from flatout.schema.predict_protocol import Noted, ProcessFailed, Reply

SourceKind = Literal["images", "idx", "csv", "parquet", "text"]
Part = Literal["train", "validation", "test"]
Crew = Literal["local", "ray", "dask"]

PARTS: tuple[Part, ...] = ("train", "validation", "test")
FORMAT = 1

# What of a source is for validation, and for a test, by default.
DEFAULT_SHARE = 0.1


class IngestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout ingest` as data.

    validation, test: shares of the records; None takes the default.
    key: a column whose equal values stay in one part. most_rejected: the share of bad records
    above which nothing is made. address: of Ray's or Dask's head; None starts one here.
    """

    source: str
    dest: str
    on: Crew = "local"
    workers: int | None = None
    address: str | None = None
    kind: SourceKind | None = None
    validation: float | None = None
    test: float | None = None
    key: str | None = None
    most_rejected: float = 0.1
    python: str | None = None
    env: str | None = None

    def check(self) -> None:
        """Refuses shares that leave nothing to train on.

        Raises:
            UsageError: bad-share.
        """
        given = [self.validation, self.test]
        shares = [DEFAULT_SHARE if share is None else share for share in given]
        # Asked so that not-a-number is refused, too.
        if not (all(0 <= share < 1 for share in shares) and sum(shares) < 1):
            raise UsageError(
                "bad-share",
                f"validation {shares[0]:g} and test {shares[1]:g} are not valid fractions.",
                because="each must be at least 0, and their sum below 1",
                fix="give fractions, such as --validation 0.1 --test 0.1",
            )
        if not 0 <= self.most_rejected <= 1:
            raise UsageError(
                "bad-share",
                f"`--max-rejected {self.most_rejected:g}` is not a fraction of the records.",
                fix="give a fraction from 0 to 1, such as 0.05",
            )


class ShardColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the shards. type: as Arrow writes it."""

    name: str
    type: str


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that determine the shards, next to the source.

    columns: of a table; classes: names in the order of their numbers; shape: of an image of bytes,
    (channels, height, width).
    """

    kind: SourceKind
    validation: float
    test: float
    key: str | None = None
    classes: tuple[str, ...] = ()
    columns: tuple[ShardColumn, ...] = ()
    shape: tuple[int, ...] = ()

    def digest(self) -> str:
        """Equal settings have equal ones."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()

    def part_of(self, key: bytes) -> Part:
        """The part of a record: by its key alone, so that it stays where it is as data grows.

        Args:
            key: SHA-256 of the record's content.
        """
        fraction = int.from_bytes(key[:8], "big") / 2**64
        if fraction < self.test:
            return "test"
        return "validation" if fraction < self.test + self.validation else "train"


class SourcePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a source that is carried out as a whole.

    name: says which part it is, and stays as the source grows. files: below the source.
    begin, end: bytes, rows or row groups of its one file, by kind; all of it if both are 0.
    stamp: names, sizes and times of its files; another one means that it must be read again.
    part: where all its records go, None where each record's key decides.
    """

    name: str
    files: tuple[str, ...]
    size_bytes: int
    stamp: str
    begin: int = 0
    end: int = 0
    part: Part | None = None


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A file of records of one part. file: below the folder of the shards."""

    file: str
    part: Part
    num_records: int
    size_bytes: int
    sha256: str


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was left out. count: more than one where a whole block cannot be read."""

    place: str
    reason: str
    content: str | None = None
    count: int = 1


class PieceDone(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a piece; written when all its shards are on the disk.

    digest: over the keys of its records and what was rejected, in order.
    num_rejected: all of them; of `rejected`, the first are kept.
    """

    name: str
    stamp: str
    settings: str
    digest: str
    shards: tuple[Shard, ...]
    num_records: int
    num_rejected: int
    rejected: tuple[Rejected, ...]


class ShardManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a folder of shards (`manifest.json`). Equal for equal sources and settings.

    counts: records of each part. source: a digest over all records and all that was rejected.
    """

    format: int
    settings: Settings
    counts: dict[Part, int]
    num_rejected: int
    source: str
    versions: dict[str, str]
    shards: tuple[Shard, ...]


class IngestJob(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a worker process. versions: that the shards depend on."""

    source: str
    dest: str
    settings: Settings
    versions: dict[str, str]


class Listed(Reply, frozen=True, kw_only=True, tag="listed"):
    """The source is cut into pieces; num_kept of them are carried out already."""

    source_kind: SourceKind
    num_pieces: int
    num_kept: int
    size_bytes: int


class Advanced(Reply, frozen=True, kw_only=True, tag="advanced"):
    """The progress of an ingestion. num_pieces: done so far, earlier ones included."""

    num_pieces: int
    num_records: int
    num_rejected: int
    done_bytes: int


class Ingested(Reply, frozen=True, kw_only=True, tag="ingested"):
    """The folder is whole.

    num_made: pieces that were carried out for it, this time. on_nodes: the same folder as the nodes
    of a cluster see it.
    """

    folder: str
    manifest: ShardManifest
    num_pieces: int
    num_made: int
    num_removed: int
    on_nodes: str | None = None


AnyIngestReply = Listed | Advanced | Noted | Ingested | ProcessFailed
