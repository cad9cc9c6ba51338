"""A folder of pages that is written whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from flatout.errors import UsageError
from flatout.system import atomic_files


class StaticFolder:
    """The files of a copy that is being written.

    Args:
        path: of the folder, under its temporary name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_files = 0

    def write(self, name: str, text: str) -> None:
        """Writes a file. name: with slashes; folders are made."""
        self._place(name).write_bytes(text.encode("utf-8", "replace"))

    def copy(self, name: str, source: Path) -> None:
        """Copies a file."""
        shutil.copyfile(source, self._place(name))

    def _place(self, name: str) -> Path:
        place = self._path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        self.num_files += 1
        return place


@contextlib.contextmanager
def static_folder(path: Path) -> Iterator[StaticFolder]:
    """A new folder to write into, which has its name once everything is in it.

    Raises:
        UsageError: folder-not-empty, folder-not-writable; RunFailed: disk-full.
    """
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(
                "folder-not-empty",
                f"{path} is not an empty folder.",
                fix="give a new folder: --export DIR",
            )
        hidden = atomic_files.hidden_path(path)
        hidden.mkdir()
        try:
            yield StaticFolder(hidden)
            if path.exists():
                path.rmdir()
            hidden.rename(path)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def without_home(text: str) -> str:
    """A text with `~` for this user's home folder, which has their name."""
    home = str(Path.home())
    # In JSON, backslashes are doubled. A home of one or two signs is not a name.
    forms = sorted({home, home.replace("\\", "\\\\")}, key=len, reverse=True)
    for form in forms:
        text = text.replace(form, "~") if len(form) > 3 else text
    return text
