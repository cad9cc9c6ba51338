"""Records of programs that `flatout watch` has run: a folder each.

watch.json      the program, the machine, how it ended (schema/watched.py: WatchRecord)
output.log      what it printed
samples.jsonl   the machine and the program, a line at a time (WatchSample)
lock            held while it runs
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from flatout.errors import FlatoutError, UsageError, nearest
from flatout.schema.watched import WatchedProgramLine, WatchRecord
from flatout.system import atomic_files
from flatout.system.paths import state_path
from flatout.system.store.run_folder import free_id

_TRIES = 100


class WatchedFolder:
    """The paths of one record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = path / "watch.json"
        self.output = path / "output.log"
        self.samples = path / "samples.jsonl"

    def lock(self) -> atomic_files.FileLock:
        """Held while the program runs."""
        return atomic_files.FileLock(self.path / "lock")


def watched_folder() -> Path:
    """Folder that holds one folder per record."""
    return state_path("watched")


def create_record(stem: str, out: str | None) -> WatchedFolder:
    """Makes the folder of a new record.

    Args:
        stem: what its name begins with.
        out: the folder, instead of one among flatout's own.

    Raises:
        UsageError: folder-not-empty, folder-not-writable.
    """
    if out is not None:
        path = Path(out).expanduser().absolute()
        with atomic_files.mapped_os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            is_empty = not any(path.iterdir())
        if not is_empty:
            raise UsageError(
                "folder-not-empty",
                f"{path} is not empty.",
                fix="give a new folder: --out DIR",
            )
        return WatchedFolder(path)
    parent = watched_folder()
    with atomic_files.mapped_os_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(_TRIES):
            path = parent / free_id(stem, parent)
            try:
                path.mkdir()
                return WatchedFolder(path)
            except FileExistsError:
                # Another one has started at the same moment.
                if attempt == _TRIES - 1:
                    raise
    raise AssertionError


def discard_record(folder: WatchedFolder, *, is_folder_kept: bool) -> None:
    """Removes the record of a program that could not be started."""
    with atomic_files.mapped_os_errors(folder.path):
        for path in (folder.output, folder.path / "lock"):
            path.unlink(missing_ok=True)
        if not is_folder_kept:
            folder.path.rmdir()


def write_record(folder: WatchedFolder, record: WatchRecord) -> None:
    """Writes `watch.json`, whole or not at all."""
    atomic_files.write_json(folder.record, record)


def record_paths() -> list[Path]:
    """Folders of all records among flatout's own, oldest first."""
    parent = watched_folder()
    with atomic_files.mapped_os_errors(parent):
        names = os.listdir(parent) if parent.is_dir() else []
    paths = [parent / name for name in names if not name.startswith(".")]
    return sorted((path for path in paths if (path / "watch.json").is_file()), key=_began)


def _began(path: Path) -> tuple[float, str]:
    # The lock is made first, and never changed.
    with contextlib.suppress(OSError):
        return (path / "lock").stat().st_mtime, path.name
    return 0.0, path.name


def find_record(text: str) -> WatchedFolder:
    """A record by its name, an unambiguous beginning of it, `last`, or its folder.

    Raises:
        UsageError: unknown-record.
    """
    if any(separator in text for separator in filter(None, (os.sep, os.altsep))):
        path = Path(os.path.abspath(text))
        if (path / "watch.json").is_file():
            return WatchedFolder(path)
    paths = record_paths()
    if text == "last" and paths:
        return WatchedFolder(paths[-1])
    same = [path for path in paths if path.name == text]
    matching = same or [path for path in paths if path.name.startswith(text)]
    if len(matching) == 1:
        return WatchedFolder(matching[0])
    names = [path.name for path in matching or paths]
    raise UsageError(
        "unknown-record",
        f"`{text}` matches several records." if matching else f"there is no record `{text}`.",
        fix=nearest(text, names) if names else "make one: flatout watch -- python train.py",
    )


def read_record(folder: WatchedFolder) -> WatchRecord:
    """The record.

    Raises:
        RunFailed: damaged-file.
    """
    return atomic_files.read_json(folder.record, WatchRecord)


def list_records() -> Iterator[WatchedProgramLine]:
    """All records among flatout's own, oldest first; damaged ones are left out."""
    for path in record_paths():
        folder = WatchedFolder(path)
        with contextlib.suppress(FlatoutError):
            record = read_record(folder)
            yield WatchedProgramLine(
                id=record.id,
                folder=record.folder,
                program=record.program,
                began_at=record.began_at,
                is_running=folder.lock().is_taken(),
                exit_code=record.exit_code,
                took_s=record.time.took_s if record.time else None,
            )
