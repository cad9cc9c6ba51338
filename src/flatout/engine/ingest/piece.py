"""Processes one piece of a source: read, cleaned, split and written. Runs in any process."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import flatout
from flatout.engine.ingest import readers, tables
from flatout.engine.ingest.records import Records, RejectedRecords
from flatout.errors import FlatoutError, UsageError
from flatout.schema.finding import Finding, finding_from
from flatout.schema.ingest_protocol import (
    PARTS,
    IngestJob,
    Part,
    PieceDone,
    Shard,
    SourceKind,
    SourcePiece,
)
from flatout.system.source_path import library
from flatout.system.store.shards import ShardFolder

# A shard is closed at this size; a row group is what training reads in one go.
_SHARD_BYTES = 64 * 2**20
_GROUP_ROWS = 16_384


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a failed piece. A value: executors change exceptions on their way back."""

    finding: Finding
    exit_code: int


def versions_for(kind: SourceKind) -> dict[str, str]:
    """The local versions that determine the shards, byte by byte."""
    arrow = library("pyarrow", package="pyarrow")
    versions = {"flatout": flatout.__version__, "pyarrow": arrow.__version__}
    if kind == "images":
        versions["pillow"] = library("PIL", package="Pillow").__version__
    return versions


def carry_out(job: IngestJob, piece: SourcePiece) -> PieceDone | Failure:
    """Makes the shards of a piece; they are on disk when this returns."""
    try:
        return _carry_out(job, piece)
    except FlatoutError as error:
        return Failure(finding=finding_from(error), exit_code=error.exit_code)


def _carry_out(job: IngestJob, piece: SourcePiece) -> PieceDone:
    here = versions_for(job.settings.kind)
    if here != job.versions:
        raise UsageError(
            "nodes-differ",
            "a worker has different versions from the process that started the ingestion.",
            because=f"{_versions_text(here)}; expected: {_versions_text(job.versions)}",
            fix="use the same environment on all nodes; otherwise the shards would differ",
        )
    folder = ShardFolder(Path(job.dest))
    bad = RejectedRecords()
    writer = _Writer(folder, job, piece)
    digest = hashlib.sha256()
    num_records = 0
    for records in _read(job, piece, bad):
        for key in records.keys:
            digest.update(key)
        num_records += len(records.keys)
        writer.take(records)
    for record in bad.samples:
        digest.update(msgspec.json.encode(record))
    done = PieceDone(
        name=piece.name,
        stamp=piece.stamp,
        settings=job.settings.digest(),
        digest=digest.hexdigest(),
        shards=tuple(writer.close()),
        num_records=num_records,
        num_rejected=bad.num,
        rejected=tuple(bad.samples),
    )
    folder.finish(done)
    return done


def _read(job: IngestJob, piece: SourcePiece, bad: RejectedRecords) -> Iterator[Records]:
    read = {
        "images": readers.read_images,
        "idx": readers.read_idx,
        "text": readers.read_passages,
        "csv": tables.read_csv,
        "parquet": tables.read_parquet,
    }[job.settings.kind]
    return read(job, piece, bad)


def _schema(job: IngestJob, piece: SourcePiece) -> Any:
    if job.settings.kind == "images":
        return readers.image_schema()
    if job.settings.kind == "idx":
        return readers.idx_schema(job)
    if job.settings.kind == "text":
        return readers.text_schema()
    return tables.schema_of(job, piece)


class _Writer:
    """Sends each record to its part, and writes a shard of a part when it is large enough."""

    def __init__(self, folder: ShardFolder, job: IngestJob, piece: SourcePiece) -> None:
        self._folder = folder
        self._settings = job.settings
        self._piece = piece
        self._schema = _schema(job, piece)
        self._batches: dict[Part, list[Any]] = {part: [] for part in PARTS}
        self._sizes: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self._shards: list[Shard] = []

    def take(self, records: Records) -> None:
        """Adds records, in order."""
        arrow = library("pyarrow", package="pyarrow")
        if not records.keys:
            return
        parts = [self._piece.part or self._settings.part_of(key) for key in records.keys]
        whole = arrow.RecordBatch.from_arrays(list(records.columns), schema=self._schema)
        for part in PARTS:
            chosen = [row for row, assigned in enumerate(parts) if assigned == part]
            if not chosen:
                continue
            self._batches[part].append(whole.take(arrow.array(chosen)))
            self._sizes[part] += records.size_bytes * len(chosen) // len(parts)
            if self._sizes[part] >= _SHARD_BYTES:
                self._write(part)

    def close(self) -> list[Shard]:
        """Writes the rest; returns all shards of the piece."""
        for part in PARTS:
            self._write(part)
        return self._shards

    def _write(self, part: Part) -> None:
        batches, self._batches[part], self._sizes[part] = self._batches[part], [], 0
        if not batches:
            return
        arrow = library("pyarrow", package="pyarrow")
        parquet = library("pyarrow.parquet", package="pyarrow")
        table = arrow.Table.from_batches(batches, schema=self._schema)
        stream = io.BytesIO()
        # Built in memory: its name depends on its content, and a full disk leaves no partial file.
        parquet.write_table(
            table.combine_chunks(),
            stream,
            row_group_size=_GROUP_ROWS,
            compression="zstd",
            use_dictionary=False,
        )
        self._shards.append(
            self._folder.write_shard(part, self._piece.name, stream.getvalue(), table.num_rows)
        )


def _versions_text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
