"""Bundles: a lock and its wheels in a folder, for a machine without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.errors import UsageError
from flatout.nouns.made_environment import Pin
from flatout.system import environment_folder, store, texts, wheel_store
from flatout.system.made_environments import LOCK_FILE

_NOTE = "flatout-half-made-bundle.json"


def bundle_folder(text: str) -> Path:
    """The folder that is to become a bundle: new, empty, or one already.

    Raises:
        UsageError: folder-not-empty.
    """
    folder = Path(text).expanduser().absolute()
    with store.mapped_os_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise _not_empty(folder, "it is a file")
        if (folder / environment_folder.RECORD).exists():
            raise _not_empty(folder, "an environment is in it")
        is_ours = (folder / LOCK_FILE).exists() or (folder / _NOTE).exists()
        if folder.exists() and not is_ours and any(folder.iterdir()):
            raise _not_empty(folder, "files are in it that are not flatout's")
    return folder


def put_wheels(folder: Path, name: str, pins: Sequence[Pin]) -> None:
    """Puts the wheels in, in the place of others. It is no bundle until it has its lock again."""
    wheels, part = folder / "wheels", folder / "wheels.part"
    with store.mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        store.write_json(folder / _NOTE, environment_folder.note(name))
        (folder / LOCK_FILE).unlink(missing_ok=True)
        wheel_store.link_into(pins, part)
        wheel_store.forget(wheels)
        part.rename(wheels)


def finish(folder: Path, lock: str) -> None:
    """Writes the lock: from here on it is a bundle."""
    texts.write(folder / LOCK_FILE, lock)
    with store.mapped_os_errors(folder):
        (folder / _NOTE).unlink(missing_ok=True)


def _not_empty(folder: Path, why: str) -> UsageError:
    return UsageError(
        "folder-not-empty",
        f"{folder} cannot become a bundle.",
        because=why,
        fix="choose an empty or a new folder",
    )
