"""A sweep's folder: what is where, how it is made, found and read.

sweep.json    what is fixed (schema/sweep.py: SweepHeader)
trials.jsonl  a line when a trial's parameters were chosen, and one when it has ended
plots/        pictures
lock          held by the command that carries it out
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from flatout.errors import RunFailed, UsageError, nearest
from flatout.schema.suggested_command import command_line, resume_sweep_command
from flatout.schema.sweep import FORMAT, SweepHeader, SweepTrial
from flatout.system import atomic_files
from flatout.system.paths import sweeps_folder


class SweepFolder:
    """The paths of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = path / "sweep.json"
        self.trials = path / "trials.jsonl"

    def is_in_use(self) -> bool:
        """Whether a command carries it out now."""
        return self._lock().is_taken()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock that the command which carries it out needs.

        Raises:
            UsageError: sweep-in-use.
        """
        lock = self._lock()
        if not lock.acquire():
            show = command_line(["flatout", "sweep", "show", self.path.name])
            raise UsageError(
                "sweep-in-use",
                f"sweep {self.path.name} is already running in another command.",
                fix=f"wait for it, or stop it with Ctrl-C; look at it: {show}",
            )
        try:
            yield
        finally:
            lock.release()

    def _lock(self) -> atomic_files.FileLock:
        return atomic_files.FileLock(self.path / "lock")


class _Format(msgspec.Struct, frozen=True):
    format: int = 0


def new_sweep(sweep_id: str) -> SweepFolder:
    """Makes the folder of a new sweep; without its header, which a kill may prevent, it is none.

    Raises:
        UsageError: sweep-exists.
    """
    folder = SweepFolder(sweeps_folder() / sweep_id)
    with atomic_files.mapped_os_errors(folder.path):
        if folder.header.exists():
            resume = resume_sweep_command(sweep_id)
            raise UsageError(
                "sweep-exists",
                f"a sweep named `{sweep_id}` already exists.",
                fix=f"choose another --name, or resume it: {resume}",
            )
        folder.path.mkdir(parents=True, exist_ok=True)
    return folder


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
    with _damage_named(folder):
        found = atomic_files.read_json(folder.header, _Format).format
    if found != FORMAT:
        raise UsageError(
            "sweep-of-another-version",
            f"sweep {folder.path.name} was written by another version of flatout.",
            because=f"its files have format {found}; this version reads {FORMAT}",
            fix="continue it with that version, or start a new sweep",
        )
    with _damage_named(folder):
        return atomic_files.read_json(folder.header, SweepHeader)


def read_trials(folder: SweepFolder) -> dict[int, SweepTrial]:
    """The trials by number, each as its last line has it; one that a kill has cut is missing.

    Raises:
        RunFailed: sweep-damaged.
    """
    with _damage_named(folder):
        trials = {line.trial: line for line in atomic_files.read_lines(folder.trials, SweepTrial)}
    if list(trials) != list(range(1, len(trials) + 1)):
        raise damaged(folder, f"{folder.trials} has lost lines: a trial is missing")
    return trials


def remove_sweep(folder: SweepFolder) -> None:
    """Deletes a sweep that holds nothing; its lock must not be held."""
    with atomic_files.mapped_os_errors(folder.path):
        shutil.rmtree(folder.path)


@contextmanager
def _damage_named(folder: SweepFolder) -> Iterator[None]:
    try:
        yield
    except RunFailed as error:
        raise damaged(folder, f"{error.problem} {error.because or ''}".strip()) from error


def damaged(folder: SweepFolder, because: str) -> RunFailed:
    """The error for a sweep whose files contain what flatout does not write."""
    name = folder.path.name
    runs = command_line(["flatout", "runs", "--where", f"sweep={name}"])
    return RunFailed(
        "sweep-damaged",
        f"the files of sweep {name} cannot be read.",
        because=because,
        fix=f"restore them from a copy, or start a new sweep; its trials are runs: {runs}",
    )
