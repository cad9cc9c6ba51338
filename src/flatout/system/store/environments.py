"""The environments that flatout has made: found by name, and whole or not there.

A virtual environment cannot be moved, so it is made where it stays. It is an environment from the
moment on that its record is in it; that is written last, after training steps have proved it. A
folder without one is half-made: it holds a note that says so, is listed nowhere and used by no one,
and the next run takes it away and begins again, with the wheels that are here already.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, UsageError, nearest
from flatout.schema.environment import MadeEnvironment
from flatout.system import atomic_files, clock
from flatout.system.paths import environments_folder
from flatout.system.store import environment_folder
from flatout.system.store.environment_folder import RECORD

LOCK_FILE = "requirements.lock"
# An installer that a killed flatout has started continues to its end.
_ORPHAN_S = 1800.0
_PAUSE_S = 0.2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}")


class _EnvironmentPointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pointer to an environment that was created in another folder."""

    folder: str


def check_name(name: str) -> str:
    """Refuses what cannot be a folder's name everywhere.

    Raises:
        UsageError: bad-environment-name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "bad-environment-name",
            f"an environment cannot be named `{name}`.",
            fix="use letters, digits, dashes and underscores, starting with a letter or digit",
        )
    return name


def folder_for(name: str, requested: str | None) -> Path:
    """The folder for an environment.

    Raises:
        UsageError: folder-not-empty, folder-not-writable.
    """
    folder = _folder_of(name) if requested is None else Path(requested).expanduser().absolute()
    _require_own(name, folder)
    if requested is None:
        return folder
    above = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(above, os.W_OK):
        raise UsageError(
            "folder-not-writable",
            f"{folder} cannot be written.",
            because=f"no permission to write in {above}",
            fix="choose another --in",
        )
    return folder


def list_environments() -> list[MadeEnvironment]:
    """Every whole environment, by name."""
    top = environments_folder()
    names = {path.stem if path.suffix == ".json" else path.name
             for path in (top.iterdir() if top.is_dir() else ())}  # fmt: skip
    return [environment for name in sorted(names) if (environment := read_environment(name))]


def read_environment(name: str) -> MadeEnvironment | None:
    """An environment by its name; None where there is no whole one."""
    if not _NAME.fullmatch(name):
        return None
    folder = _folder_of(name)
    record = folder / RECORD
    try:
        environment = atomic_files.read_json(record, MadeEnvironment) if record.is_file() else None
    except FlatoutError:
        return None  # From another version, or damaged: rebuilt, like a half-made one.
    # A record in a folder that was copied or moved reports about the one that it was copied from.
    if (
        environment is None
        or environment.name != name
        or not environment_folder.is_same(environment.folder, folder)
    ):
        return None
    return environment if Path(environment.python).exists() else None


def find_environment(name: str) -> MadeEnvironment:
    """An environment by its name.

    Raises:
        UsageError: unknown-environment.
    """
    environment = read_environment(name)
    if environment is None:
        names = [other.name for other in list_environments()]
        raise UsageError(
            "unknown-environment",
            f"there is no environment `{name}`.",
            fix=nearest(name, names) if names else "create one: flatout setup",
        )
    return environment


def requested_python(python: str | None, environment: str | None) -> str | None:
    """The interpreter that `--python` or `--env` names; None where neither was given.

    Raises:
        UsageError: python-and-environment, unknown-environment.
    """
    if environment is None:
        return python
    if python is not None:
        raise UsageError(
            "python-and-environment",
            "`--python` cannot be combined with `--env`.",
            because="each of them selects an interpreter",
            fix="leave one of them out",
        )
    return find_environment(environment).python


@contextmanager
def locked() -> Iterator[int]:
    """One flatout at a time makes and removes environments; gives the lock's descriptor.

    Installers hold it, too. So where a flatout was killed, the next one does not begin before what
    that one has started is over.

    Raises:
        UsageError: setup-in-progress.
    """
    top = environments_folder()
    with atomic_files.mapped_os_errors(top):
        top.mkdir(parents=True, exist_ok=True)
    lock = atomic_files.FileLock(top / ".lock")
    waited_s = 0.0
    while not lock.acquire():
        if not lock.is_orphaned() or waited_s > _ORPHAN_S:
            raise UsageError(
                "setup-in-progress",
                "another flatout is creating or removing environments.",
                fix="wait until it is done, then run this again",
            )
        clock.sleep_s(_PAUSE_S)
        waited_s += _PAUSE_S
    lock.sign()
    assert lock.descriptor is not None
    try:
        yield lock.descriptor
    finally:
        lock.release()


def forget_lock() -> None:
    """Removes the lock where nothing is left that it would be for."""
    top = environments_folder()
    if top.is_dir() and [path.name for path in top.iterdir()] == [".lock"]:
        (top / ".lock").unlink()


def is_busy() -> bool:
    """Whether someone makes or removes environments now."""
    return atomic_files.FileLock(environments_folder() / ".lock").is_taken()


def begin(name: str, folder: Path) -> None:
    """Says in a folder that an environment is being made in it.

    What is half-made there is taken away; a whole one is set aside until its successor is whole. An
    empty folder stays: it may be the place of a disk, or a place where nothing else can be written.

    Raises:
        UsageError: folder-not-empty, environment-in-use.
    """
    _require_own(name, folder)
    with atomic_files.mapped_os_errors(folder):
        if (folder / RECORD).exists():
            environment_folder.set_aside(folder)
        elif folder.exists() and environment_folder.has_content(folder):
            environment_folder.discard(folder)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(folder / environment_folder.NOTE, environment_folder.note(name))
        if folder != environments_folder() / name:
            atomic_files.write_json(_pointer(name), _EnvironmentPointer(str(folder)))


def finish(made: MadeEnvironment, lock: str) -> None:
    """Makes a proved folder an environment: from here on it is there."""
    folder = Path(made.folder)
    atomic_files.write_atomically(folder / LOCK_FILE, lock.encode())
    atomic_files.write_json(folder / RECORD, made)
    (folder / environment_folder.NOTE).unlink(missing_ok=True)
    environment_folder.forget_aside(folder)


def rename_record(made: MadeEnvironment) -> None:
    """Writes an environment's record again: something in it has changed."""
    atomic_files.write_json(Path(made.folder) / RECORD, made)


def remove(name: str) -> MadeEnvironment:
    """Removes an environment; gives what it was.

    Raises:
        UsageError: unknown-environment, environment-in-use.
    """
    environment = find_environment(name)
    environment_folder.discard(_folder_of(name))
    if _pointed_at(_pointer(name)) is not None:
        _pointer(name).unlink(missing_ok=True)
    return environment


def sweep() -> None:
    """Ends what an earlier flatout has left: removals and half-made environments."""
    top = environments_folder()
    there = [path for path in top.iterdir() if path.is_dir() and not path.name.startswith(".")]
    pointed = [_folder_of(path.stem) for path in top.glob("*.json")]
    for folder in dict.fromkeys([*there, *environment_folder.folders_set_aside(top), *pointed]):
        environment_folder.settle(folder)
    for gone in top.glob(".*.removed-*"):
        environment_folder.remove_tree(gone)
    for path in top.glob("*.json"):
        pointed_at = _pointed_at(path)
        # Without the folder above it is on a disk that is not here now.
        if pointed_at and pointed_at.parent.exists() and not pointed_at.exists():
            path.unlink(missing_ok=True)


def size_bytes(folder: Path) -> int:
    """The bytes in a folder, a file with two names counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(at, name))
            except OSError:
                continue
            if status.st_nlink > 1 and (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            total += status.st_size
    return total


def free_bytes(folder: Path) -> int:
    """The free bytes of the disk that is to hold a folder."""
    above = next(path for path in (folder, *folder.parents) if path.exists())
    with atomic_files.mapped_os_errors(above):
        return shutil.disk_usage(above).free


def _folder_of(name: str) -> Path:
    return _pointed_at(_pointer(name)) or environments_folder() / name


def _pointed_at(pointer: Path) -> Path | None:
    """The folder that a file points at; None if it is no such file of flatout's."""
    try:
        return (
            Path(atomic_files.read_json(pointer, _EnvironmentPointer).folder)
            if pointer.is_file()
            else None
        )
    except FlatoutError:
        return None  # A user's own; or torn by a crash of the machine: then it points nowhere.


def _pointer(name: str) -> Path:
    return environments_folder() / f"{name}.json"


def _require_own(name: str, folder: Path) -> None:
    """Refuses what is not flatout's: a user's files, another environment, or a copy of one.

    Raises:
        UsageError: folder-not-empty.
    """
    if folder.exists() and not folder.is_dir():
        raise _not_empty(folder, "it is a file")
    with atomic_files.mapped_os_errors(folder):
        is_own = environment_folder.is_marked(folder)
        if folder.exists() and not is_own and environment_folder.has_content(folder):
            raise _not_empty(folder, "it contains files that are not flatout's")
    in_place = environments_folder() / name
    if folder != in_place and _is_of_others(_pointer(name)):
        raise _not_empty(
            folder, f"{_pointer(name)}, where flatout would record it, is not flatout's"
        )
    holder = environment_folder.read_holder(folder)
    if holder is None:
        return
    if holder.name != name:
        raise _not_empty(folder, f"it contains the environment `{holder.name}`")
    # In flatout's own place under its own name no one keeps a copy: it came along with the place.
    if folder != in_place and not environment_folder.is_same(holder.folder, folder):
        raise _not_empty(folder, f"it contains a copy of the environment `{name}`")


def _is_of_others(pointer: Path) -> bool:
    """Whether something is in a pointer's place that flatout has not written."""
    if not os.path.lexists(pointer) or _pointed_at(pointer) is not None:
        return False
    # A crash of the machine may leave an empty file, or one of zeros.
    return not pointer.is_file() or bool(pointer.read_bytes().strip(b"\0"))


def _not_empty(folder: Path, why: str) -> UsageError:
    return UsageError(
        "folder-not-empty",
        f"{folder} cannot become an environment.",
        because=why,
        fix="choose an empty or new folder",
    )
