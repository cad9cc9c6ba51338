"""A folder of pages that is written whole or not at all."""

from __future__ import annotations

import contextlib
import html
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
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


def private_folders(runs: Iterable[Path]) -> dict[str, str]:
    """What the copy has in place of folders of this machine, which may have their user's name.

    Runs are named without the folder that they are in; the home folder is `~`.
    """
    names = {f"{run.parent}{os.sep}": "" for run in runs} | {str(Path.home()): "~"}
    # One of few signs has no name in it, and may be part of anything.
    return {folder: name for folder, name in names.items() if len(folder) > 3}


def without_folders(text: str, names: Mapping[str, str]) -> str:
    """A text in HTML or JSON with these names in place of folders, the first ones first."""
    for folder, name in names.items():
        # In JSON, backslashes are doubled; in HTML, some signs are escaped, as markupsafe does.
        escaped = html.escape(folder).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
        for form in (folder, folder.replace("\\", "\\\\"), folder.replace("\\", "/"), escaped):
            text = text.replace(form, name)
    return text
