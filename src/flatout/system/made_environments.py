"""The environments that flatout has made: found by name, and whole or not there.

A virtual environment cannot be moved, so it is made where it stays. It is an environment from the
moment on that its record lies in it; that is written last, after training steps have proved it. A
folder without one is half-made: it holds a note that says so, is listed nowhere and used by nobody,
and the next run takes it away and begins again, with the wheels that are here already.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError, nearest
from flatout.nouns.ingestion import IngestRequest
from flatout.nouns.made_environment import MadeEnvironment, Making
from flatout.nouns.question import InferenceRequest
from flatout.nouns.train_request import TrainRequest
from flatout.system import clock, store
from flatout.system.folders import environments_folder

RECORD = "flatout-environment.json"
LOCK_FILE = "requirements.lock"
_NOTE = "flatout-half-made.json"
_NOTE_TEXT = "flatout was making or removing this. Run the same command again to end it."
# An installer that a killed flatout has started goes on to its end.
_ORPHAN_S = 1800.0
_PAUSE_S = 0.2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}")


R = TypeVar("R", bound=TrainRequest | InferenceRequest | IngestRequest)


class _Place(msgspec.Struct, frozen=True):
    """Where an environment lies that was asked to be elsewhere."""

    folder: str


def check_name(name: str) -> str:
    """Refuses what cannot be a folder's name everywhere.

    Raises:
        UsageError: bad-environment-name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            "bad-environment-name",
            f"an environment cannot be called `{name}`.",
            fix="use letters, digits, dashes and underscores, beginning with a letter or digit",
        )
    return name


def folder_for(name: str, asked: str | None) -> Path:
    """Where an environment is to lie.

    Raises:
        UsageError: folder-not-empty, folder-not-writable.
    """
    if asked is None:
        return _folder_of(name)
    folder = Path(asked).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise _not_empty(folder, "it is a file")
    is_ours = (folder / RECORD).exists() or (folder / _NOTE).exists()
    with store.mapped_os_errors(folder):
        if folder.exists() and not is_ours and any(folder.iterdir()):
            raise _not_empty(folder, "files are in it that are not flatout's")
    above = next(one for one in (folder, *folder.parents) if one.exists())
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
    return [found for name in sorted(names) if (found := read_environment(name))]


def read_environment(name: str) -> MadeEnvironment | None:
    """An environment by its name; None where there is no whole one."""
    if not _NAME.fullmatch(name):
        return None
    record = _folder_of(name) / RECORD
    try:
        found = store.read_json(record, MadeEnvironment) if record.is_file() else None
    except FlatoutError:
        return None  # From another version, or damaged: made again, like a half-made one.
    return found if found and Path(found.python).exists() else None


def find_environment(name: str) -> MadeEnvironment:
    """An environment by its name.

    Raises:
        UsageError: unknown-environment.
    """
    found = read_environment(name)
    if found is None:
        names = [one.name for one in list_environments()]
        raise UsageError(
            "unknown-environment",
            f"there is no environment `{name}`.",
            fix=nearest(name, names) if names else "make one: flatout setup",
        )
    return found


def asked_python(python: str | None, environment: str | None) -> str | None:
    """The interpreter that `--python` or `--env` names; None where neither was given.

    Raises:
        UsageError: python-and-environment, unknown-environment.
    """
    if environment is None:
        return python
    if python is not None:
        raise UsageError(
            "python-and-environment",
            "`--python` and `--env` cannot be given together.",
            because="each of them names an interpreter",
            fix="leave one of them out",
        )
    return find_environment(environment).python


def with_interpreter(request: R) -> R:
    """The request with the interpreter of the environment that it names."""
    return msgspec.structs.replace(
        request, python=asked_python(request.python, request.env), env=None
    )


@contextmanager
def locked() -> Iterator[int]:
    """One flatout at a time makes and removes environments; gives the lock's descriptor.

    Installers hold it, too. So where a flatout was killed, the next one does not begin before what
    that one has started is over.

    Raises:
        UsageError: setup-in-progress.
    """
    top = environments_folder()
    path = top / ".lock"
    with store.mapped_os_errors(top):
        top.mkdir(parents=True, exist_ok=True)
    lock = store.Lock(path)
    waited_s = 0.0
    while not lock.acquire():
        if not _is_orphaned(path) or waited_s > _ORPHAN_S:
            raise UsageError(
                "setup-in-progress",
                "another flatout is making or removing environments.",
                fix="wait until it is done, then run this again",
            )
        clock.sleep_s(_PAUSE_S)
        waited_s += _PAUSE_S
    assert lock.descriptor is not None
    os.ftruncate(lock.descriptor, 0)
    os.write(lock.descriptor, str(os.getpid()).encode())
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
    """Whether somebody makes or removes environments now."""
    return store.Lock(environments_folder() / ".lock").is_taken()


def _is_orphaned(path: Path) -> bool:
    """Whether the lock is held by what a killed flatout has started, not by a living one."""
    import psutil

    try:
        text = path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return False  # Under Windows a locked file cannot be read; there only its owner holds it.
    return text.isdigit() and not psutil.pid_exists(int(text))


def begin(name: str, folder: Path, making: Making) -> None:
    """Takes away what is half-made in a folder, and says in it that it is being made."""
    discard(folder)
    with store.mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.write_json(folder / _NOTE, making)
        if folder != environments_folder() / name:
            store.write_json(_pointer(name), _Place(str(folder)))


def finish(made: MadeEnvironment, lock: str) -> None:
    """Makes a proved folder an environment: from here on it is there."""
    folder = Path(made.folder)
    store.write_atomically(folder / LOCK_FILE, lock.encode())
    store.write_json(folder / RECORD, made)
    (folder / _NOTE).unlink(missing_ok=True)


def rename_record(made: MadeEnvironment) -> None:
    """Writes an environment's record again: something in it has changed."""
    store.write_json(Path(made.folder) / RECORD, made)


def discard(folder: Path) -> None:
    """Takes a folder away that is no environment yet, or is to be none any more.

    It loses its name first, so that nobody finds half of it, wherever this is cut off.
    """
    if not folder.exists():
        return
    gone = folder.with_name(f".{folder.name}.removed-{os.getpid()}")
    with store.mapped_os_errors(folder):
        try:
            note = Making(name=folder.name, note=_NOTE_TEXT, is_removed=True)
            store.write_json(folder / _NOTE, note)
        except RunFailed as error:
            # A full disk has no room for it, and gets some by what follows.
            if error.rule != "disk-full":
                raise
        try:
            folder.rename(gone)
        except OSError as error:
            if sys.platform == "win32" or (folder / RECORD).exists():
                raise _in_use(folder, error) from error
            raise
        _remove_tree(gone)


def remove(name: str) -> MadeEnvironment:
    """Removes an environment; gives what it was.

    Raises:
        UsageError: unknown-environment, environment-in-use.
    """
    found = find_environment(name)
    discard(Path(found.folder))
    _pointer(name).unlink(missing_ok=True)
    return found


def sweep() -> None:
    """Ends what an earlier flatout has left: removals and half-made environments."""
    top = environments_folder()
    pointed = [_folder_of(path.stem) for path in top.glob("*.json")]
    for folder in [*(path for path in top.iterdir() if path.is_dir()), *pointed]:
        for gone in folder.parent.glob(f".{folder.name}.removed-*"):
            _remove_tree(gone)
        if folder.name.startswith(".") and ".removed-" in folder.name:
            _remove_tree(folder)
        elif (folder / _NOTE).exists() and not (folder / RECORD).exists():
            discard(folder)
        elif (folder / RECORD).exists():
            (folder / _NOTE).unlink(missing_ok=True)
    for path in top.glob("*.json"):
        if not _folder_of(path.stem).exists():
            path.unlink(missing_ok=True)


def note(name: str) -> Making:
    """What a folder holds until it is an environment."""
    return Making(name=name, note=_NOTE_TEXT)


def size_bytes(folder: Path) -> int:
    """What lies in a folder, a file with two names counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                told = os.lstat(os.path.join(at, name))
            except OSError:
                continue
            if told.st_nlink > 1 and (told.st_dev, told.st_ino) in seen:
                continue
            seen.add((told.st_dev, told.st_ino))
            total += told.st_size
    return total


def free_bytes(folder: Path) -> int:
    """What the disk has left that is to hold a folder."""
    above = next(one for one in (folder, *folder.parents) if one.exists())
    with store.mapped_os_errors(above):
        return shutil.disk_usage(above).free


def _folder_of(name: str) -> Path:
    pointer = _pointer(name)
    try:
        if pointer.is_file():
            return Path(store.read_json(pointer, _Place).folder)
    except FlatoutError:
        pass  # Torn by a crash of the whole machine: then it points nowhere.
    return environments_folder() / name


def _pointer(name: str) -> Path:
    return environments_folder() / f"{name}.json"


def _remove_tree(folder: Path) -> None:
    # What another program holds open under Windows stays until the next sweep.
    shutil.rmtree(folder, ignore_errors=True)


def _not_empty(folder: Path, why: str) -> UsageError:
    return UsageError(
        "folder-not-empty",
        f"{folder} cannot become an environment.",
        because=why,
        fix="choose an empty or a new folder",
    )


def _in_use(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        "environment-in-use",
        f"{folder} cannot be taken away.",
        because=error.strerror or str(error),
        fix="close the programs that run in it, then try again",
    )
