"""An ingestion from start to end: list the source, process pieces, publish, clean up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.engine.ingest.executors import carry_out_all
from flatout.engine.ingest.listing import IngestSource, scan_source
from flatout.engine.ingest.piece import Failure, versions_for
from flatout.errors import RunFailed, UsageError
from flatout.schema.finding import Finding, option_without_effect
from flatout.schema.ingest_protocol import (
    FORMAT,
    PARTS,
    Advanced,
    AnyIngestReply,
    Ingested,
    IngestJob,
    IngestRequest,
    Listed,
    PieceDone,
    Settings,
    ShardManifest,
    SourcePiece,
)
from flatout.schema.predict_protocol import Noted, ProcessFailed
from flatout.schema.units import counted_text, percent_text
from flatout.system.source_path import existing
from flatout.system.store.shards import ShardFolder


def ingest(request: IngestRequest) -> Iterator[AnyIngestReply]:
    """Brings a folder up to date with a source, and reports progress.

    Raises:
        UsageError: bad-share, ingest-into-source, ingested-otherwise, ingest-in-progress,
            folder-not-empty; as listing.scan_source.
        RunFailed: too-many-bad-records, disk-full, ingest-worker-died, scheduler-not-reachable.
    """
    request.check()
    source_path = existing(request.source)
    folder = ShardFolder(Path(request.dest).expanduser().absolute())
    _check_apart(source_path, folder.path)
    source = scan_source(request)
    for finding in _without_effect(request, source):
        yield Noted(finding=finding)
    lock = folder.open()
    try:
        yield from _fill(request, source_path, source, folder)
    finally:
        lock.release()


def _fill(
    request: IngestRequest, source_path: Path, source: IngestSource, folder: ShardFolder
) -> Iterator[AnyIngestReply]:
    settings = source.settings
    old = folder.read_manifest()
    _check_same(folder, old, settings)
    digest_of_settings = settings.digest()
    done = {
        piece.name: finished
        for piece in source.pieces
        if (finished := folder.done(piece, digest_of_settings))
    }
    todo = [piece for piece in source.pieces if piece.name not in done]
    yield Listed(
        source_kind=settings.kind,
        num_pieces=len(source.pieces),
        num_kept=len(done),
        size_bytes=source.size_bytes,
    )
    job = IngestJob(
        source=str(source_path),
        dest=str(folder.path),
        settings=settings,
        versions=versions_for(settings.kind),
    )
    if todo:
        sizes = {piece.name: piece.size_bytes for piece in source.pieces}
        so_far = _advanced(source.pieces, done)
        for outcome in carry_out_all(job, todo, request.on, request.workers, request.address):
            if isinstance(outcome, Failure):
                yield ProcessFailed(finding=outcome.finding, exit_code=outcome.exit_code)
                return
            done[outcome.name] = outcome
            so_far = _advanced_by(so_far, outcome, sizes[outcome.name])
            yield so_far
    ordered = [done[piece.name] for piece in source.pieces]
    _check_bad(ordered, request)
    manifest = _manifest(job, ordered, old if not todo else None)
    folder.publish(
        manifest, (rejected for piece_done in ordered for rejected in piece_done.rejected)
    )
    num_removed = folder.sweep(ordered, old)
    yield Ingested(
        folder=str(folder.path),
        manifest=manifest,
        num_pieces=len(ordered),
        num_made=len(todo),
        num_removed=num_removed,
    )


def _advanced(pieces: Sequence[SourcePiece], done: dict[str, PieceDone]) -> Advanced:
    there = [piece for piece in pieces if piece.name in done]
    return Advanced(
        num_pieces=len(there),
        num_records=sum(piece.num_records for piece in done.values()),
        num_rejected=sum(piece.num_rejected for piece in done.values()),
        done_bytes=sum(piece.size_bytes for piece in there),
    )


def _advanced_by(so_far: Advanced, piece: PieceDone, size_bytes: int) -> Advanced:
    """Adds one piece to the totals; summing all of them each time takes hours for 100,000."""
    return Advanced(
        num_pieces=so_far.num_pieces + 1,
        num_records=so_far.num_records + piece.num_records,
        num_rejected=so_far.num_rejected + piece.num_rejected,
        done_bytes=so_far.done_bytes + size_bytes,
    )


def _manifest(
    job: IngestJob, done: Sequence[PieceDone], old: ShardManifest | None
) -> ShardManifest:
    """The shards in the order of the source, so that the result does not depend on the executor."""
    shards = tuple(shard for piece in done for shard in piece.shards)
    digest = hashlib.sha256()
    for piece in done:
        digest.update(bytes.fromhex(piece.digest))
    return ShardManifest(
        format=FORMAT,
        settings=job.settings,
        counts={
            part: sum(shard.num_records for shard in shards if shard.part == part) for part in PARTS
        },
        num_rejected=sum(piece.num_rejected for piece in done),
        source=digest.hexdigest(),
        # If no piece was processed now, the versions that made the existing shards.
        versions=old.versions if old else job.versions,
        shards=shards,
    )


def _check_apart(source: Path, dest: Path) -> None:
    if source.resolve() == dest.resolve() or source.resolve() in dest.resolve().parents:
        raise UsageError(
            "ingest-into-source",
            f"{dest} is inside the source {source}.",
            because="the next ingestion would read the shards as data",
            fix="choose a folder outside it",
        )


def _check_same(folder: ShardFolder, old: ShardManifest | None, settings: Settings) -> None:
    """A folder keeps its settings, so that a typo does not destroy the existing shards."""
    if old is None or old.settings.digest() == settings.digest():
        return
    # Classes and columns may change with the source; the other settings come from options.
    compared = ("kind", "validation", "test", "key")
    other = [
        f"{name} {getattr(old.settings, name)} (now: {getattr(settings, name)})"
        for name in compared
        if getattr(old.settings, name) != getattr(settings, name)
    ]
    if other:
        raise UsageError(
            "ingested-otherwise",
            f"{folder.path} holds shards made with other settings.",
            because="; ".join(other),
            fix="choose another folder, or delete this one first",
        )


def _check_bad(done: Sequence[PieceDone], request: IngestRequest) -> None:
    num_bad = sum(piece.num_rejected for piece in done)
    num_records = sum(piece.num_records for piece in done)
    if num_records and num_bad <= request.most_rejected * (num_bad + num_records):
        return
    rejected = [record for piece in done for record in piece.rejected]
    first = "; ".join(f"{record.place}: {record.reason}" for record in rejected[:3])
    if not num_bad:
        raise UsageError("no-data", f"{request.source} has no records.", fix="check the path")
    raise RunFailed(
        "too-many-bad-records",
        f"{num_bad:,} of {counted_text(num_bad + num_records, 'record')} are bad; "
        "nothing was published.",
        because=first,
        fix=f"fix the source, or allow more than {percent_text(request.most_rejected, 0)}: "
        "--max-rejected SHARE",
    )


def _without_effect(request: IngestRequest, source: IngestSource) -> Iterator[Finding]:
    if source.has_own_test and request.test is not None:
        yield _note("--test", "the source has its own test files, which are used")
    if request.on == "local" and request.address is not None:
        yield _note("--address", "all work is done on this machine")
    if request.on != "local" and request.address is not None and request.workers is not None:
        yield _note("--workers", "the cluster at that address decides how many workers there are")
    if source.num_ignored:
        kind = source.settings.kind
        yield Finding(
            rule="files-left-out",
            severity="note",
            problem=f"ignored {counted_text(source.num_ignored, 'file')} "
            + (
                "that are not images in class folders."
                if kind == "images"
                else f"of another kind than {kind}."
            ),
        )


def _note(option: str, because: str) -> Finding:
    return option_without_effect(option, because, f"remove {option}")
