"""The course of an ingestion: look, carry out what is not done, publish, tidy up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.engine.data_files import existing
from flatout.engine.ingest.crews import carry_out_all
from flatout.engine.ingest.listing import Source, look_through
from flatout.engine.ingest.work import Failure, versions_for
from flatout.errors import RunFailed, UsageError
from flatout.nouns.finding import Finding, option_without_effect
from flatout.nouns.ingestion import (
    FORMAT,
    PARTS,
    Advanced,
    AnyIngestAnswer,
    Ingested,
    IngestRequest,
    Job,
    Listed,
    Manifest,
    Piece,
    PieceDone,
    Settings,
)
from flatout.nouns.question import Broken, Noted
from flatout.nouns.units import counted_text, percent_text
from flatout.system.shard_folder import ShardFolder


def ingest(request: IngestRequest) -> Iterator[AnyIngestAnswer]:
    """Makes a folder hold what a source holds, and tells how it goes.

    Raises:
        UsageError: bad-share, ingest-into-source, ingested-otherwise, ingest-in-progress,
            folder-not-empty; what listing.look_through says.
        RunFailed: too-many-bad-records, disk-full, ingest-worker-died, scheduler-not-reachable.
    """
    request.check()
    source_path = existing(request.source)
    folder = ShardFolder(Path(request.dest).expanduser().absolute())
    _check_apart(source_path, folder.path)
    source = look_through(request)
    for finding in _without_effect(request, source):
        yield Noted(finding=finding)
    lock = folder.open()
    try:
        yield from _fill(request, source_path, source, folder)
    finally:
        lock.release()


def _fill(
    request: IngestRequest, source_path: Path, source: Source, folder: ShardFolder
) -> Iterator[AnyIngestAnswer]:
    settings = source.settings
    old = folder.read_manifest()
    _check_same(folder, old, settings)
    wanted = settings.digest()
    done = {piece.name: found for piece in source.pieces if (found := folder.done(piece, wanted))}
    todo = [piece for piece in source.pieces if piece.name not in done]
    yield Listed(
        source_kind=settings.kind,
        num_pieces=len(source.pieces),
        num_kept=len(done),
        size_bytes=source.size_bytes,
    )
    job = Job(
        source=str(source_path),
        dest=str(folder.path),
        settings=settings,
        versions=versions_for(settings.kind),
    )
    if todo:
        sizes = {piece.name: piece.size_bytes for piece in source.pieces}
        so_far = _advanced(source.pieces, done)
        for one in carry_out_all(job, todo, request.on, request.workers, request.address):
            if isinstance(one, Failure):
                yield Broken(finding=one.finding, exit_code=one.exit_code)
                return
            done[one.name] = one
            so_far = _advanced_by(so_far, one, sizes[one.name])
            yield so_far
    ordered = [done[piece.name] for piece in source.pieces]
    _check_bad(ordered, request)
    manifest = _manifest(job, ordered, old if not todo else None)
    folder.publish(manifest, (each for one in ordered for each in one.rejected))
    num_removed = folder.sweep(ordered, old)
    yield Ingested(
        folder=str(folder.path),
        manifest=manifest,
        num_pieces=len(ordered),
        num_made=len(todo),
        num_removed=num_removed,
    )


def _advanced(pieces: Sequence[Piece], done: dict[str, PieceDone]) -> Advanced:
    there = [piece for piece in pieces if piece.name in done]
    return Advanced(
        num_pieces=len(there),
        num_records=sum(one.num_records for one in done.values()),
        num_rejected=sum(one.num_rejected for one in done.values()),
        done_bytes=sum(piece.size_bytes for piece in there),
    )


def _advanced_by(so_far: Advanced, one: PieceDone, size_bytes: int) -> Advanced:
    """With one piece more; to add up all of them again for each would take hours of 100,000."""
    return Advanced(
        num_pieces=so_far.num_pieces + 1,
        num_records=so_far.num_records + one.num_records,
        num_rejected=so_far.num_rejected + one.num_rejected,
        done_bytes=so_far.done_bytes + size_bytes,
    )


def _manifest(job: Job, done: Sequence[PieceDone], old: Manifest | None) -> Manifest:
    """What the folder holds, in the order of its source: who has made it leaves no trace."""
    shards = tuple(shard for one in done for shard in one.shards)
    digest = hashlib.sha256()
    for one in done:
        digest.update(bytes.fromhex(one.digest))
    return Manifest(
        format=FORMAT,
        settings=job.settings,
        counts={
            part: sum(shard.num_records for shard in shards if shard.part == part) for part in PARTS
        },
        num_rejected=sum(one.num_rejected for one in done),
        source=digest.hexdigest(),
        # Where nothing was made anew, those that have made it.
        versions=old.versions if old else job.versions,
        shards=shards,
    )


def _check_apart(source: Path, dest: Path) -> None:
    if source.resolve() == dest.resolve() or source.resolve() in dest.resolve().parents:
        raise UsageError(
            "ingest-into-source",
            f"{dest} lies in the source {source}.",
            because="the next ingestion would take the shards for data",
            fix="choose a folder beside it",
        )


def _check_same(folder: ShardFolder, old: Manifest | None, settings: Settings) -> None:
    """A folder keeps its settings: who mistypes one must not lose what is there."""
    if old is None or old.settings.digest() == settings.digest():
        return
    # New classes and columns come with the source; the rest was asked for.
    asked = ("kind", "validation", "test", "key")
    other = [
        f"{name} {getattr(old.settings, name)} (now: {getattr(settings, name)})"
        for name in asked
        if getattr(old.settings, name) != getattr(settings, name)
    ]
    if other:
        raise UsageError(
            "ingested-otherwise",
            f"{folder.path} holds shards that were made otherwise.",
            because="; ".join(other),
            fix="choose another folder, or delete this one",
        )


def _check_bad(done: Sequence[PieceDone], request: IngestRequest) -> None:
    num_bad = sum(one.num_rejected for one in done)
    num_records = sum(one.num_records for one in done)
    if num_records and num_bad <= request.most_rejected * (num_bad + num_records):
        return
    rejected = [each for one in done for each in one.rejected]
    first = "; ".join(f"{one.place}: {one.reason}" for one in rejected[:3])
    if not num_bad:
        raise UsageError("no-data", f"{request.source} has no records.", fix="check the path")
    raise RunFailed(
        "too-many-bad-records",
        f"{num_bad:,} of {counted_text(num_bad + num_records, 'record')} cannot be used; "
        f"nothing was published.",
        because=first,
        fix=f"mend the source, or allow more than {percent_text(request.most_rejected, 0)}: "
        "--max-rejected SHARE",
    )


def _without_effect(request: IngestRequest, source: Source) -> Iterator[Finding]:
    if source.has_own_test and request.test is not None:
        yield _note("--test", "the source has files for a test of its own, which are taken")
    if request.on == "local" and request.address is not None:
        yield _note("--address", "nothing but this machine does the work")
    if request.on != "local" and request.address is not None and request.workers is not None:
        yield _note("--workers", "the cluster at that address has the workers that it has")
    if source.num_ignored:
        yield Finding(
            rule="files-left-out",
            severity="note",
            problem=f"left out {counted_text(source.num_ignored, 'file')} of other kinds than "
            f"{source.settings.kind}, or images in no class's folder.",
        )


def _note(option: str, because: str) -> Finding:
    return option_without_effect(option, because, f"leave {option} out")
