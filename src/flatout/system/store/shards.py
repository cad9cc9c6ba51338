"""A folder of shards, which stays whole however its making ends.

manifest.json        what is there; swapped atomically when all of it is
train/ validation/ test/    shards, named by piece and content: a name never changes its content
rejected.jsonl       what was left out, and why
.ingest/             pieces that are carried out, and the lock
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.ingest_protocol import (
    FORMAT,
    PARTS,
    Part,
    PieceDone,
    Rejected,
    Shard,
    ShardManifest,
    SourcePiece,
)
from flatout.system import atomic_files

MANIFEST = "manifest.json"
_REJECTED = "rejected.jsonl"
_STATE = ".ingest"
_SHARD_NAME = re.compile(r".+-(?P<sha256>[0-9a-f]{12})\.parquet(?P<torn>\.part)?")


class ShardFolder:
    """The paths of a folder of shards, and what is done with them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / MANIFEST
        self.rejected = path / _REJECTED
        self._state = path / _STATE

    def open(self) -> atomic_files.FileLock:
        """Makes what is missing, and takes the lock for making shards here.

        Raises:
            UsageError: folder-not-empty, ingest-in-progress.
        """
        with atomic_files.mapped_os_errors(self.path):
            is_new = not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))
            if not is_new and not self._state.is_dir():
                raise UsageError(
                    "folder-not-empty",
                    f"{self.path} cannot be used as a shards folder.",
                    because="it contains something that flatout did not create",
                    fix="choose an empty or new folder",
                )
            for folder in (self._state, *(self.path / part for part in PARTS)):
                folder.mkdir(parents=True, exist_ok=True)
        lock = atomic_files.FileLock(self._state / "lock")
        if not lock.acquire():
            raise UsageError(
                "ingest-in-progress",
                f"another flatout is writing shards to {self.path}.",
                fix="wait until it is done, then run this again",
            )
        return lock

    def read_manifest(self) -> ShardManifest | None:
        """The present manifest; None if nothing has been made yet."""
        if not self.manifest.is_file():
            return None
        manifest = atomic_files.read_json(self.manifest, ShardManifest)
        if manifest.format != FORMAT:
            raise UsageError(
                "ingested-otherwise",
                f"{self.path} was written by another version of flatout.",
                because=f"its format is {manifest.format}, this one writes {FORMAT}",
                fix="ingest into a new folder",
            )
        return manifest

    def done(self, piece: SourcePiece, settings: str) -> PieceDone | None:
        """The record of a piece if its source and settings are the same and its shards exist."""
        path = self._record(piece.name)
        try:
            record = atomic_files.read_json(path, PieceDone) if path.is_file() else None
        except FlatoutError:
            return None  # Torn by a crash of the whole machine: the piece is carried out again.
        if record is None or (record.stamp, record.settings) != (piece.stamp, settings):
            return None
        return record if all(map(self._is_there, record.shards)) else None

    def finish(self, done: PieceDone) -> None:
        """Says that a piece is carried out; its shards are on the disk."""
        atomic_files.write_json(self._record(done.name), done)

    def write_shard(self, part: Part, piece: str, content: bytes, num_records: int) -> Shard:
        """Writes a shard under a name that says what is in it."""
        sha256 = hashlib.sha256(content).hexdigest()
        file = f"{part}/{piece}-{sha256[:12]}.parquet"
        path = self.path / file
        atomic_files.write_atomically(path, content)
        return Shard(
            file=file, part=part, num_records=num_records, size_bytes=len(content), sha256=sha256
        )

    def publish(self, manifest: ShardManifest, rejected: Iterator[Rejected]) -> None:
        """Swaps the manifest, where it is another: from here on these shards are the data."""
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in rejected)
        _write_if_other(self.rejected, lines)
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
        _write_if_other(self.manifest, text)

    def sweep(self, pieces: Sequence[PieceDone], old: ShardManifest | None) -> int:
        """Removes shards that are no longer of the data; gives how many went.

        Those of the old manifest, and those of an ingestion that was killed. Other files are a
        user's own and stay.
        """
        published = {shard.file for shard in old.shards} if old else set()
        in_use = {shard.file for piece in pieces for shard in piece.shards}
        records = {self._record(piece.name) for piece in pieces}
        num_removed = 0
        with atomic_files.mapped_os_errors(self.path):
            for part in PARTS:
                for path in (self.path / part).iterdir():
                    file = f"{part}/{path.name}"
                    if file not in in_use and (file in published or _is_left_over(path)):
                        path.unlink(missing_ok=True)
                        num_removed += path.suffix == ".parquet"
            for path in self._state.iterdir():
                is_record = path.name.endswith((".json", ".json.part"))
                if is_record and path not in records and path.is_file():
                    path.unlink(missing_ok=True)
        return num_removed

    def _record(self, name: str) -> Path:
        return self._state / f"{name}.json"

    def _is_there(self, shard: Shard) -> bool:
        path = self.path / shard.file
        with atomic_files.mapped_os_errors(path):
            return path.is_file() and path.stat().st_size == shard.size_bytes


def verify(folder: Path, shards: Sequence[Shard]) -> None:
    """Reads these shards and compares their checksums.

    Raises:
        RunFailed: damaged-data, for a damaged file or a missing one.
    """
    for shard in shards:
        path = folder / shard.file
        wrong = None
        with atomic_files.mapped_os_errors(path):
            try:
                with open(path, "rb") as stream:
                    got = hashlib.file_digest(stream, "sha256").hexdigest()
                if got != shard.sha256:
                    wrong = f"SHA-256 of its content: expected {shard.sha256}, got {got}"
            except FileNotFoundError:
                wrong = "it is missing"
        if wrong:
            raise RunFailed(
                "damaged-data",
                f"the shard {path} cannot be used.",
                because=wrong,
                fix=f"delete {path} if it exists, then run the same `flatout ingest` again to "
                "rewrite it",
            )


def _is_left_over(path: Path) -> bool:
    """Whether a killed ingestion has left this: its name says what is in it, or would be."""
    named = _SHARD_NAME.fullmatch(path.name)
    if not named or path.is_symlink() or not path.is_file():
        return False
    if named["torn"]:
        return True
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest().startswith(named["sha256"])


def _write_if_other(path: Path, content: bytes) -> None:
    with atomic_files.mapped_os_errors(path):
        if path.is_file() and path.read_bytes() == content:
            return
    atomic_files.write_atomically(path, content)
