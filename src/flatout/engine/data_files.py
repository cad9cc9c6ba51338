"""What all sources need: the path that was given, and the package that reads it. Without torch."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from flatout.errors import UsageError, nearest
from flatout.system.folders import data_folders

# What a package is called where it is installed from, if not as it is imported.
_REQUIREMENTS = {"PIL": "pillow"}


def is_installed(name: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


def library(name: str, *, package: str) -> Any:
    """A module of a package that only some data needs.

    Raises:
        UsageError: data-package-not-installed.
    """
    top = name.partition(".")[0]
    try:
        importlib.import_module(top)
    except ModuleNotFoundError as error:
        # Something it needs may be lacking: then it is there, but broken, and says so itself.
        if error.name != top:
            raise
        raise UsageError(
            "data-package-not-installed",
            f"this data is read by the package {package}, which is not installed.",
            because=str(error),
            fix=install_command(_REQUIREMENTS.get(top, top)),
        ) from error
    return importlib.import_module(name)


def install_command(requirement: str) -> str:
    """What to type to install a package where this Python finds it."""
    python = sys.executable
    if sys.platform == "win32":
        python = f'& "{python}"' if " " in python else python
    else:
        python = shlex.quote(python)
    # uv makes environments without pip.
    # Not `is_installed`: setuptools takes that for pip at work, and stops offering its distutils,
    # which torch's compiler needs.
    has_pip = PathFinder.find_spec("pip") is not None or shutil.which("uv") is None
    if has_pip:
        return f"{python} -m pip install {requirement}"
    return f"uv pip install --python {python.removeprefix('& ')} {requirement}"


def existing(path: str | Path) -> Path:
    """The path with `~` resolved, absolute.

    One that is not absolute is looked up from the current folder, then in the folders of data,
    which the nodes of a cluster have elsewhere than this machine.

    Raises:
        UsageError: data-path-not-found.
    """
    given = Path(path).expanduser()
    for place in (Path.cwd(), *data_folders()):
        if (place / given).exists():
            return place / given
    found = given.absolute()
    above = found.parent
    if not above.is_dir():
        fix = f"check the path; there is no folder {above} either"
    else:
        names = [item.name for item in above.iterdir()]
        fix = nearest(found.name, names) if len(names) <= 20 else f"look into {above}"
    raise UsageError(
        "data-path-not-found",
        f"there is no {found}.",
        because=None if given.is_absolute() else _looked_up(),
        fix=fix,
    )


def _looked_up() -> str:
    folders = " and ".join(str(folder) for folder in data_folders())
    return f"a path that is not absolute is looked up from {Path.cwd()}, then in {folders}"


def files_in(path: str | Path, ending: str) -> list[Path]:
    """The file itself, or all files of a folder with that ending, sorted by name.

    Raises:
        UsageError: data-path-not-found, no-data.
    """
    found = existing(path)
    if not found.is_dir():
        return [found]
    files = sorted(
        item for item in found.iterdir() if item.suffix == ending and not is_hidden(item.name)
    )
    if not files:
        raise UsageError(
            "no-data", f"there is no {ending} file in {found}.", fix="check the folder's path"
        )
    return files


def is_hidden(name: str) -> bool:
    """Whether a file is no data: what editors and operating systems leave in folders."""
    return name.startswith((".", "__MACOSX"))
