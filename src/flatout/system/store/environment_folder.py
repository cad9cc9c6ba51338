"""The folder of one environment: taken away, set aside and put back, so that none is lost midway.

A virtual environment cannot be moved, but its folder can lose its name and get it back. So one that
is rebuilt is next to its successor, under a hidden name, until that one is whole.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.environment import UnfinishedEnvironment
from flatout.system import atomic_files, links

RECORD = "flatout-environment.json"
NOTE = "flatout-half-made.json"
_NOTE_TEXT = "flatout was creating or removing this. Run the same command again to finish it."
_ASIDE = ".before"


class EnvironmentOwner(msgspec.Struct, frozen=True):
    """Whose a folder is by its record, whatever version of flatout has written that."""

    name: str
    folder: str


def read_holder(folder: Path) -> EnvironmentOwner | None:
    """The environment that was made in a folder, and its place; None if no record reports it."""
    try:
        path = folder / RECORD
        return atomic_files.read_json(path, EnvironmentOwner) if path.is_file() else None
    except FlatoutError:
        return None


def is_marked(folder: Path) -> bool:
    """Whether flatout made this folder: its record or its note is in it."""
    return any((folder / name).is_file() for name in (RECORD, NOTE))


def has_content(folder: Path) -> bool:
    """Whether anything is in a folder, other than a note that a killed flatout was writing."""
    unfinished = atomic_files.part_path(folder / NOTE).name
    return any(path.name != unfinished for path in folder.iterdir())


def is_same(first: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to one folder."""
    return os.path.realpath(first) == os.path.realpath(other)


def note(name: str) -> UnfinishedEnvironment:
    """The marker in a folder until it is an environment."""
    return UnfinishedEnvironment(name=name, note=_NOTE_TEXT)


def discard(folder: Path) -> None:
    """Takes a folder away that is not an environment yet, or should be none any more.

    It loses its name first, so that no one finds half of it, wherever this is cut off. Where it
    must keep that, as the place of a disk, it is emptied, its record first and its note last.

    Raises:
        UsageError: environment-in-use.
    """
    if not folder.exists():
        return
    gone = folder.with_name(f".{folder.name}.removed-{os.getpid()}")
    with atomic_files.mapped_os_errors(folder):
        try:
            removal = UnfinishedEnvironment(name=folder.name, note=_NOTE_TEXT, is_removed=True)
            atomic_files.write_json(folder / NOTE, removal)
        except RunFailed as error:
            # A full disk has no room for it, and gets some by what follows.
            if error.rule != "disk-full":
                raise
        try:
            folder.rename(gone)
        except OSError as error:
            if sys.platform == "win32":
                raise _in_use(folder, error) from error
            _empty(folder)
            return
        remove_tree(gone)


def set_aside(folder: Path) -> None:
    """Gives a whole environment a hidden name, until the next one in its place is whole.

    Raises:
        UsageError: environment-in-use.
    """
    forget_aside(folder)
    with atomic_files.mapped_os_errors(folder):
        try:
            folder.rename(_aside(folder))
        except OSError as error:
            raise _in_use(folder, error) from error


def restore(folder: Path) -> None:
    """Takes away what was started in a folder, and gives the one that was set aside its name."""
    has_before = (_aside(folder) / RECORD).is_file()
    if (folder / NOTE).exists() or (has_before and _is_ours_or_empty(folder)):
        discard(folder)
    if has_before and not folder.exists():
        with atomic_files.mapped_os_errors(folder):
            _aside(folder).rename(folder)


def forget_note(folder: Path) -> None:
    """Removes the note from a whole environment, whose making was killed right before that."""
    if (folder / RECORD).is_file():
        with contextlib.suppress(OSError):
            (folder / NOTE).unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Ends what a killed flatout has left of a folder: a removal, a making, or one rebuilt."""
    for gone in folder.parent.glob(f".{glob.escape(folder.name)}.removed-*"):
        remove_tree(gone)
    if (folder / RECORD).exists():
        (folder / NOTE).unlink(missing_ok=True)
        forget_aside(folder)
    else:
        restore(folder)


def forget_aside(folder: Path) -> None:
    """Removes what was set aside: its successor is whole."""
    aside = _aside(folder)
    if (aside / RECORD).is_file() and not links.is_link(aside):
        # Without its record the rest of one half-removed is never put back.
        with contextlib.suppress(OSError, FlatoutError):
            removal = UnfinishedEnvironment(name=folder.name, note=_NOTE_TEXT, is_removed=True)
            atomic_files.write_json(aside / NOTE, removal)
            (aside / RECORD).unlink()
    remove_tree(aside)


def folders_set_aside(top: Path) -> list[Path]:
    """The folders below one whose environments are under hidden names."""
    return [path.with_name(path.name[1:].removesuffix(_ASIDE)) for path in top.glob(f".*{_ASIDE}")]


def remove_tree(folder: Path) -> None:
    """Removes a folder that flatout has made, as far as that can be; any other stays.

    What marks it goes last, so that the rest of a removal that is cut short is known as flatout's.
    """
    if links.is_link(folder) or not folder.is_dir() or not _is_ours_or_empty(folder):
        return
    # What another program holds open under Windows stays until the next sweep.
    with contextlib.suppress(OSError):
        _empty(folder)
        folder.rmdir()


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_ASIDE}")


def _is_ours_or_empty(folder: Path) -> bool:
    try:
        return is_marked(folder) or not has_content(folder)
    except OSError:
        return False


def _empty(folder: Path) -> None:
    """Removes what is in a folder, in an order that leaves it half-made wherever this ends.

    Where a full disk has left no room for the note, the record marks it to the end.
    """
    last = NOTE if (folder / NOTE).exists() else RECORD
    (folder / (RECORD if last == NOTE else NOTE)).unlink(missing_ok=True)
    is_left = False
    for path in folder.iterdir():
        if path.name == last:
            continue
        with contextlib.suppress(OSError):
            if links.is_link(path):
                links.remove_link(path)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        is_left = is_left or os.path.lexists(path)
    if not is_left:
        (folder / last).unlink(missing_ok=True)


def _in_use(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        "environment-in-use",
        f"{folder} cannot be removed.",
        because=error.strerror or str(error),
        fix="close the programs that run in it, then try again; if it is a mount point, choose a "
        "folder below it",
    )
