"""Paths, optional packages and errors of all sources of data. Without torch: ingestion uses it."""

from __future__ import annotations

import importlib
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from flatout.errors import UsageError, nearest
from flatout.system.paths import data_folders

# Project names that differ from import names.
_REQUIREMENTS = {"PIL": "pillow"}


def library(name: str, *, package: str) -> Any:
    """Imports a module of an optional package.

    Raises:
        UsageError: data-package-not-installed.
    """
    top = name.partition(".")[0]
    try:
        importlib.import_module(top)
    except ModuleNotFoundError as error:
        # The package exists but one of its own imports is missing: let its own error show.
        if error.name != top:
            raise
        raise UsageError(
            "data-package-not-installed",
            f"reading this data needs the package {package}, which is not installed.",
            because=str(error),
            fix=install_command(_REQUIREMENTS.get(top, top)),
        ) from error
    return importlib.import_module(name)


def install_command(requirement: str) -> str:
    """The command that installs a package for this Python."""
    python = sys.executable
    if sys.platform == "win32":
        python = f'& "{python}"' if " " in python else python
    else:
        python = shlex.quote(python)
    # uv creates environments without pip.
    # Not `is_installed`: setuptools mistakes it for a running pip and stops offering its distutils,
    # which torch's compiler needs.
    has_pip = PathFinder.find_spec("pip") is not None or shutil.which("uv") is None
    if has_pip:
        return f"{python} -m pip install {requirement}"
    return f"uv pip install --python {python.removeprefix('& ')} {requirement}"


def existing(path: str | Path) -> Path:
    """The path with `~` resolved, absolute.

    A relative path is looked up from the current folder, then in the data folders, which are
    elsewhere on the nodes of a cluster.

    Raises:
        UsageError: data-path-not-found.
    """
    given = Path(path).expanduser()
    for folder in (Path.cwd(), *data_folders()):
        if (folder / given).exists():
            return folder / given
    absolute = given.absolute()
    above = absolute.parent
    if not above.is_dir():
        fix = f"check the path; the folder {above} does not exist either"
    else:
        names = [item.name for item in above.iterdir()]
        fix = nearest(absolute.name, names) if len(names) <= 20 else f"look in {above}"
        fix = fix if names else f"check the path; the folder {above} is empty"
    raise UsageError(
        "data-path-not-found",
        f"{absolute} does not exist.",
        because=None if given.is_absolute() else _looked_up(),
        fix=fix,
    )


def _looked_up() -> str:
    folders = " and ".join(str(folder) for folder in data_folders())
    return f"a relative path is looked up in {Path.cwd()}, then in {folders}"


def files_in(path: str | Path, ending: str) -> list[Path]:
    """The file itself, or all files in a folder with that ending, sorted by name.

    Raises:
        UsageError: data-path-not-found, no-data.
    """
    source = existing(path)
    if not source.is_dir():
        return [source]
    files = sorted(
        item for item in source.iterdir() if item.suffix == ending and not is_hidden(item.name)
    )
    if not files:
        raise UsageError(
            "no-data", f"no file in {source} ends in {ending}.", fix="check the folder's path"
        )
    return files


def is_hidden(name: str) -> bool:
    """Whether a file is a leftover of an editor or the operating system, not data."""
    return name.startswith((".", "__MACOSX"))


def no_class_folders(folder: Path) -> UsageError:
    """The error for images that are not in folders named after their classes."""
    return UsageError(
        "no-images",
        f"{folder} has no class folders.",
        because="an image's class is the name of its folder",
        fix="move the images into folders named after their classes",
    )


def columns_text(columns: Iterable[Any]) -> str:
    """Columns with their types, for messages: of anything with `name` and `type`."""
    return ", ".join(f"{column.name} ({column.type})" for column in columns)
