"""The folder of one environment: taken away, set aside and put back, so that none is lost midway.

A virtual environment cannot be moved, but its folder can lose its name and get it back. So one that
is made again lies beside its successor, under a hidden name, until that one is whole.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.nouns.made_environment import Making
from flatout.system import store

RECORD = "flatout-environment.json"
NOTE = "flatout-half-made.json"
_NOTE_TEXT = "flatout was making or removing this. Run the same command again to end it."
_ASIDE = ".before"


class Holder(msgspec.Struct, frozen=True):
    """Whose a folder is by its record, whatever version of flatout has written that."""

    name: str
    folder: str


def read_holder(folder: Path) -> Holder | None:
    """Which environment was made in a folder, and where; None where no record tells it."""
    try:
        path = folder / RECORD
        return store.read_json(path, Holder) if path.is_file() else None
    except FlatoutError:
        return None


def is_marked(folder: Path) -> bool:
    """Whether flatout made this folder: its record or its note is in it."""
    return any((folder / name).is_file() for name in (RECORD, NOTE))


def is_same(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to one folder."""
    return os.path.realpath(one) == os.path.realpath(other)


def note(name: str) -> Making:
    """What a folder holds until it is an environment."""
    return Making(name=name, note=_NOTE_TEXT)


def discard(folder: Path) -> None:
    """Takes a folder away that is no environment yet, or is to be none any more.

    It loses its name first, so that nobody finds half of it, wherever this is cut off. Where it
    must keep that, as the place of a disk, it is emptied, its record first and its note last.

    Raises:
        UsageError: environment-in-use.
    """
    if not folder.exists():
        return
    gone = folder.with_name(f".{folder.name}.removed-{os.getpid()}")
    with store.mapped_os_errors(folder):
        try:
            removal = Making(name=folder.name, note=_NOTE_TEXT, is_removed=True)
            store.write_json(folder / NOTE, removal)
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
    with store.mapped_os_errors(folder):
        remove_tree(_aside(folder))
        try:
            folder.rename(_aside(folder))
        except OSError as error:
            raise _in_use(folder, error) from error


def put_back(folder: Path) -> None:
    """Takes away what was begun in a folder, and gives the one that was set aside its name."""
    if (folder / NOTE).exists() or _aside(folder).exists():
        discard(folder)
    if _aside(folder).exists():
        with store.mapped_os_errors(folder):
            _aside(folder).rename(folder)


def settle(folder: Path) -> None:
    """Ends what a killed flatout has left of a folder: a removal, a making, or one made again."""
    for gone in folder.parent.glob(f".{glob.escape(folder.name)}.removed-*"):
        remove_tree(gone)
    if (folder / RECORD).exists():
        (folder / NOTE).unlink(missing_ok=True)
        forget_aside(folder)
    else:
        put_back(folder)


def forget_aside(folder: Path) -> None:
    """Removes what was set aside: its successor is whole."""
    remove_tree(_aside(folder))


def folders_set_aside(top: Path) -> list[Path]:
    """The folders below one whose environments lie under hidden names."""
    return [path.with_name(path.name[1:].removesuffix(_ASIDE)) for path in top.glob(f".*{_ASIDE}")]


def remove_tree(folder: Path) -> None:
    """Removes a folder, as far as that can be."""
    # What another program holds open under Windows stays until the next sweep.
    shutil.rmtree(folder, ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_ASIDE}")


def _empty(folder: Path) -> None:
    """Removes what is in a folder, in an order that leaves it half-made wherever this ends."""
    (folder / RECORD).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        elif path.name != NOTE:
            path.unlink()
    (folder / NOTE).unlink(missing_ok=True)


def _in_use(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        "environment-in-use",
        f"{folder} cannot be taken away.",
        because=error.strerror or str(error),
        fix="close the programs that run in it, then try again; if it is where a disk is mounted, "
        "choose a folder below it",
    )
