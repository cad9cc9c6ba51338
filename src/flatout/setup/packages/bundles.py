"""Bundles: a lock and its wheels in a folder, for a machine without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.errors import UsageError
from flatout.schema.environment import Pin
from flatout.setup.packages import wheel_store
from flatout.system import atomic_files, text_input
from flatout.system.store import environment_folder
from flatout.system.store.environments import LOCK_FILE

_NOTE = "flatout-half-made-bundle.json"


def bundle_folder(text: str) -> Path:
    """The folder for a bundle: new, empty, or an existing bundle.

    Raises:
        UsageError: folder-not-empty.
    """
    folder = Path(text).expanduser().absolute()
    with atomic_files.mapped_os_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise _not_empty(folder, "it is a file")
        if (folder / environment_folder.RECORD).exists():
            raise _not_empty(folder, "it contains an environment")
        is_ours = (folder / LOCK_FILE).exists() or (folder / _NOTE).exists()
        if folder.exists() and not is_ours and any(folder.iterdir()):
            raise _not_empty(folder, "it contains files that are not flatout's")
    return folder


def put_wheels(folder: Path, name: str, pins: Sequence[Pin]) -> None:
    """Replaces the wheels in it. It is not a bundle again until its lock file is written."""
    wheels, part = folder / "wheels", folder / "wheels.part"
    with atomic_files.mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(folder / _NOTE, environment_folder.note(name))
        (folder / LOCK_FILE).unlink(missing_ok=True)
        wheel_store.link_into(pins, part)
        wheel_store.forget(wheels)
        part.rename(wheels)


def finish(folder: Path, lock: str) -> None:
    """Writes the lock file, which makes it a bundle."""
    text_input.write(folder / LOCK_FILE, lock)
    with atomic_files.mapped_os_errors(folder):
        (folder / _NOTE).unlink(missing_ok=True)


def _not_empty(folder: Path, why: str) -> UsageError:
    return UsageError(
        "folder-not-empty",
        f"cannot write a bundle into {folder}.",
        because=why,
        fix="choose an empty or new folder",
    )
