"""The journal of what flatout has changed outside its own folders: one folder for each plan.

changes/0007/journal.jsonl  lines of schema/change_journal.py, each on disk before what it announces
changes/0007/kept/0         files as they were, in the order of the lines that name them
changes/0007/kept/changed-3 a file that an undo has overwritten: that of the entry's fourth line
changes/lock                held while a plan is applied or taken back; holds the process's number
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.errors import RunFailed, UsageError, nearest
from flatout.schema.addresses import masked
from flatout.schema.change_journal import Applied, FileKept, JournalLine, PlanBegun, TreeKept
from flatout.schema.plan import InstallPackages, Plan
from flatout.system import atomic_files, clock, edit_file
from flatout.system.paths import state_path

# A program of a killed flatout continues to its end: `mkdir` takes a moment, an installer minutes.
_WAIT_S = 30.0
_PAUSE_S = 0.1


def changes_folder() -> Path:
    """Folder that holds one folder per plan that was applied."""
    return state_path("changes")


class ChangeJournal:
    """The lines of one plan, while it is applied or taken back.

    Args:
        folder: of the entry.
        lock: held by the process that works on it.
    """

    def __init__(self, folder: Path, lock: atomic_files.FileLock) -> None:
        self.folder = folder
        self._lock = lock
        self.trees: dict[int, TreeKept] = {}
        self._lines = atomic_files.Lines(folder / "journal.jsonl")

    @property
    def id(self) -> str:
        """The id for `flatout undo`."""
        return self.folder.name

    @property
    def kept_open(self) -> tuple[int, ...]:
        """A file number that a program inherits: the journal stays locked while it works alone."""
        descriptor = self._lock.descriptor
        if sys.platform == "win32" or descriptor is None:
            return ()
        return (descriptor,)

    def append(self, line: JournalLine) -> None:
        """Adds a line; it is on the disk when this returns."""
        if isinstance(line, TreeKept):
            self.trees[line.step] = line
        self._lines.append(line, is_synced=True)

    def keep_file(self, path: Path, *, needs_root: bool) -> None:
        """Keeps a file as it is, or that there is none, and says so."""
        content = edit_file.content_of(path)
        name = None
        if content is not None:
            folder = self.folder / "kept"
            with atomic_files.mapped_os_errors(folder):
                # What others may not read, they may not read here either.
                folder.mkdir(mode=0o700, exist_ok=True)
                name = f"kept/{len(list(folder.iterdir()))}"
                atomic_files.write_atomically(self.folder / name, content)
                shutil.copymode(path, self.folder / name)
        folders = edit_file.missing_folders(path)
        self.append(
            FileKept(
                path=str(path),
                copy=name,
                digest=None if content is None else edit_file.digest(content),
                needs_root=needs_root,
                folders=folders,
            )
        )

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()


def begin(plan: Plan, lock: atomic_files.FileLock) -> ChangeJournal:
    """A new entry, whose first line holds the plan."""
    folder = changes_folder()
    with atomic_files.mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        newest = max((int(name) for name in _names(folder)), default=0)
        entry = folder / f"{newest + 1:04d}"
        entry.mkdir()
    journal = ChangeJournal(entry, lock)
    journal.append(PlanBegun(at=clock.now_s(), plan=_without_passwords(plan)))
    atomic_files.sync_folder(folder)
    return journal


def _without_passwords(plan: Plan) -> Plan:
    """The plan as it may be kept: it is not carried out from here, and no undo queries an index."""
    steps = []
    for step in plan.steps:
        if isinstance(step.action, InstallPackages):
            words = tuple(map(masked, step.action.words))
            step = msgspec.structs.replace(
                step, action=msgspec.structs.replace(step.action, words=words)
            )
        steps.append(step)
    return msgspec.structs.replace(plan, steps=tuple(steps))


def entries() -> list[Applied]:
    """All plans that were applied, oldest first."""
    folder = changes_folder()
    if not folder.is_dir():
        return []
    is_busy = atomic_files.FileLock(folder / "lock").is_taken()
    read = [_read(folder / name) for name in _names(folder)]
    begun = [(name, lines) for name, lines in read if lines]
    return [
        Applied(
            id=entry.name,
            folder=str(entry),
            begun=lines[0],
            lines=tuple(lines),
            # Only the newest can be the one that someone works on.
            is_under_way=is_busy and number == len(begun) - 1,
        )
        for number, (entry, lines) in enumerate(begun)
        if isinstance(lines[0], PlanBegun)
    ]


def entry(id: str) -> Applied:
    """The entry of that id.

    Raises:
        UsageError: no-such-change.
    """
    by_id = {entry.id: entry for entry in entries()}
    full_id = id.zfill(4)
    if full_id not in by_id:
        raise UsageError(
            "no-such-change",
            f"there is no change `{id}`.",
            fix=f"flatout undo --list shows them; {nearest(full_id, by_id)}"
            if by_id
            else "there are none to undo",
        )
    return by_id[full_id]


def lock() -> atomic_files.FileLock:
    """Takes the journal for this process; it is free again when `release` is called.

    Raises:
        UsageError: changes-under-way.
    """
    folder = changes_folder()
    with atomic_files.mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    taken = atomic_files.FileLock(folder / "lock")
    for _ in wait_for_program():
        continue
    if not taken.acquire():
        raise UsageError(
            "changes-under-way",
            "another flatout is changing this machine right now.",
            fix="wait until it has finished, then try again",
        )
    taken.sign()
    return taken


def wait_for_program() -> Iterator[str]:
    """Waits while a program that a killed flatout had started holds the journal.

    Yields, before it waits, what it waits for, in words; nothing where there is nothing to wait
    for.

    Raises:
        UsageError: changes-under-way, where the program runs for longer than half a minute.
    """
    lock = atomic_files.FileLock(changes_folder() / "lock")
    if not (lock.is_taken() and lock.is_orphaned()):
        return
    newest = next(reversed(entries()), None)
    if newest is None:
        return  # Its owner has only just taken it, and has not signed yet.
    change = f"change {newest.id} ({newest.begun.plan.goal})"
    yield f"waiting for a program of {change} to end: flatout was killed while it ran"
    until_s = clock.elapsed_s() + _WAIT_S
    while lock.is_taken() and lock.is_orphaned():
        if clock.elapsed_s() > until_s:
            raise UsageError(
                "changes-under-way",
                f"a program of {change} is still running.",
                because="flatout was killed while it ran",
                fix="wait until it has finished, then try again",
            )
        clock.sleep_s(_PAUSE_S)


def kept_content(applied: Applied, file: FileKept) -> bytes | None:
    """A file's bytes as they were; None where there was no file.

    Raises:
        RunFailed: kept-copy-lost. A missing copy does not mean that there was no file.
    """
    if file.copy is None:
        return None
    copy = Path(applied.folder) / file.copy
    content = edit_file.content_of(copy)
    problem = None
    if content is None:
        problem = "is missing"
    elif file.digest is None and not content:
        # An older flatout noted no digest, and a file is seldom empty.
        problem = "is empty, and whether the file was empty was not recorded"
    elif file.digest not in (None, edit_file.digest(content)):
        problem = "was modified after it was written"
    if problem is not None:
        raise RunFailed(
            "kept-copy-lost",
            f"{file.path} cannot be restored.",
            because=f"its copy, {copy}, {problem}",
            fix=f"restore {file.path} from a backup of your own; flatout undo {applied.id} --force "
            "then undoes the rest and leaves this file unchanged",
        )
    return content


def is_copy_lost(applied: Applied, file: FileKept) -> bool:
    """Whether the copy of a file is missing or damaged."""
    try:
        kept_content(applied, file)
    except RunFailed as error:
        if error.rule != "kept-copy-lost":
            raise
        return True
    return False


def remove_folders(folders: Sequence[str]) -> None:
    """Removes folders that a change has made, as far as they are empty, the innermost first."""
    for folder in reversed(folders):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            # A kill came before it was made, or behind its removal: those above may be there.
            continue
        except OSError:
            # Someone has put something in, or it needs root: an empty folder does no harm.
            return


def restore_mode(applied: Applied, file: FileKept) -> None:
    """Gives a file that had to be rebuilt the permissions that it had."""
    if file.copy is not None and sys.platform != "win32":
        with atomic_files.mapped_os_errors(Path(file.path)):
            shutil.copymode(Path(applied.folder) / file.copy, file.path)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.isdigit() and path.is_dir())


def _read(folder: Path) -> tuple[Path, list[JournalLine]]:
    return folder, atomic_files.read_lines(folder / "journal.jsonl", JournalLine)


def keep_aside(applied: Applied, file: FileKept, content: bytes) -> Path:
    """Keeps what someone else has made of a file, before it is overwritten; gives its place."""
    # By its line, since files that were not there before have no copy to be named after.
    folder = Path(applied.folder) / "kept"
    path = folder / f"changed-{applied.lines.index(file)}"
    with atomic_files.mapped_os_errors(path):
        folder.mkdir(mode=0o700, exist_ok=True)
        atomic_files.write_atomically(path, content)
    return path
