"""A sweep's folder: what is where, how it is made, found and read.

sweep.json    what is fixed (schema/sweep.py: SweepHeader)
trials.jsonl  a line when a trial's parameters were chosen, and one when it has ended
plots/        pictures
lock          held by the command that carries it out
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import TypeVar

import msgspec

from flatout.errors import RunFailed, UsageError, nearest
from flatout.schema.suggested_command import command_line
from flatout.schema.sweep import FORMAT, SweepHeader, TrialLine
from flatout.system import atomic_files
from flatout.system.paths import sweeps_folder

T = TypeVar("T")


class SweepFolder:
    """The paths of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = path / "sweep.json"
        self.trials = path / "trials.jsonl"
        self.plots = path / "plots"

    def lock(self) -> atomic_files.FileLock:
        """The lock that the command which carries it out must hold."""
        return atomic_files.FileLock(self.path / "lock")


class _Format(msgspec.Struct, frozen=True):
    format: int = 0


def create_sweep(header: SweepHeader) -> SweepFolder:
    """Makes the folder of a new sweep; its id must be free.

    Raises:
        UsageError: sweep-exists.
    """
    path = sweeps_folder() / header.id
    resume = command_line(["flatout", "sweep", "--resume", header.id])
    taken = UsageError(
        "sweep-exists",
        f"a sweep named `{header.id}` already exists.",
        fix=f"choose another --name, or resume it: {resume}",
    )
    with atomic_files.mapped_os_errors(path):
        if path.exists():
            raise taken
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made under a hidden name: a folder that is called by an id holds its header, always.
        new = atomic_files.hidden_path(path)
        new.mkdir()
        try:
            atomic_files.write_json(SweepFolder(new).header, header)
            atomic_files.move_into_place(new, path)
        except BaseException as error:
            shutil.rmtree(new, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise taken from error
            raise
    return SweepFolder(path)


def sweep_paths() -> list[Path]:
    """Folders of all sweeps, the one that was written to last at the end."""
    parent = sweeps_folder()
    with atomic_files.mapped_os_errors(parent):
        files = [path for path in parent.glob("*/sweep.json") if path.parent.name[0] != "."]
        files.sort(key=lambda path: (path.stat().st_mtime_ns, path))
    return [path.parent for path in files]


def find_sweep(text: str) -> SweepFolder:
    """A sweep by its id, an unambiguous beginning of it, or `last`.

    Raises:
        UsageError: unknown-sweep.
    """
    names = [path.name for path in sweep_paths()]
    matching = [name for name in names if name == text] or [
        name for name in names if name.startswith(text)
    ]
    if text == "last" and not matching:
        matching = names[-1:]
    if len(matching) == 1:
        return SweepFolder(sweeps_folder() / matching[0])
    raise UsageError(
        "unknown-sweep",
        f"`{text}` matches several sweeps." if matching else f"there is no sweep `{text}`.",
        fix=nearest(text, matching or names)
        if names
        else "start one: flatout sweep digits -s lr=1e-3..1e-1:log",
    )


def read_header(folder: SweepFolder) -> SweepHeader:
    """The facts of a sweep.

    Raises:
        UsageError: sweep-of-another-version; RunFailed: sweep-damaged.
    """
    found = _read(folder, folder.header, _Format).format
    if found != FORMAT:
        raise UsageError(
            "sweep-of-another-version",
            f"sweep {folder.path.name} was written by another version of flatout.",
            because=f"its files have format {found}; this version reads {FORMAT}",
            fix="continue it with that version, or start a new sweep",
        )
    return _read(folder, folder.header, SweepHeader)


def read_trials(folder: SweepFolder) -> list[TrialLine]:
    """What has happened to the trials; a last line that a kill has cut is missing.

    Raises:
        RunFailed: sweep-damaged.
    """
    try:
        lines: list[TrialLine] = atomic_files.read_lines(folder.trials, TrialLine)
    except RunFailed as error:
        raise _damaged(folder, error) from error
    return lines


def remove_sweep(folder: SweepFolder) -> None:
    """Deletes a sweep that holds nothing; its lock must not be held."""
    with atomic_files.mapped_os_errors(folder.path):
        shutil.rmtree(folder.path)


def _read(folder: SweepFolder, path: Path, kind: type[T]) -> T:
    try:
        return atomic_files.read_json(path, kind)
    except RunFailed as error:
        raise _damaged(folder, error) from error


def _damaged(folder: SweepFolder, error: RunFailed) -> RunFailed:
    name = folder.path.name
    where = f"{error.problem} {error.because}" if error.because else error.problem
    runs = command_line(["flatout", "runs", "--where", f"sweep={name}"])
    return RunFailed(
        "sweep-damaged",
        f"the files of sweep {name} cannot be read.",
        because=where,
        fix=f"restore them from a copy, or start a new sweep; its trials are runs: {runs}",
    )
