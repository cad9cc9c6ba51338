"""uv: found, or installed into flatout's own folder by pip."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

from flatout.errors import RunFailed
from flatout.nouns.indexes import Indexes
from flatout.system import store
from flatout.system.command import run
from flatout.system.folders import app_folder, cache_folder, tools_folder
from flatout.system.variables import setup_environment

# The first that writes a lock with addresses and hashes (`pylock.toml`).
_OLDEST = (0, 7)
_INSTALL_S = 600.0


def find_uv() -> str | None:
    """A uv that is new enough, on the path, beside this Python, or where its installers put it."""
    name = "uv.exe" if sys.platform == "win32" else "uv"
    places = [Path(sys.executable).with_name(name), Path.home() / ".local" / "bin" / name,
              Path.home() / ".cargo" / "bin" / name, *_own()]  # fmt: skip
    named = shutil.which("uv")
    for path in [*([named] if named else []), *(str(one) for one in places if one.is_file())]:
        done = run([path, "--version"], 10.0, setup_environment())
        found = re.search(r"(\d+)\.(\d+)", done.stdout) if done.exit_code == 0 else None
        if found and (int(found[1]), int(found[2])) >= _OLDEST:
            return path
    return None


def has_pip() -> bool:
    """Whether this Python can run pip."""
    return PathFinder.find_spec("pip") is not None


def install_uv(indexes: Indexes) -> str | None:
    """Puts uv into flatout's own folder; None where pip cannot get it."""
    folder = tools_folder() / "uv"
    part = store.part_path(folder)
    places = ["--index-url", indexes.default] if indexes.default else []
    argv = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps",
            "--only-binary", ":all:", "--target", str(part), *places, requirement()]  # fmt: skip
    with store.mapped_os_errors(folder):
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        environment = {"PIP_CACHE_DIR": str(cache_folder() / "pip"), **setup_environment()}
        done = run(argv, _INSTALL_S, environment)
        if done.exit_code != 0 or not _below(part):
            shutil.rmtree(part, ignore_errors=True)
            return None
        shutil.rmtree(folder, ignore_errors=True)
        store.move_into_place(part, folder)
    return find_uv()


def requirement() -> str:
    """A uv that is new enough, as a requirement."""
    return f"uv>={_OLDEST[0]}.{_OLDEST[1]}"


def bundled_folder(bundle: Path) -> Path:
    """Where a bundle has its uv, in a folder that is called by the wheel's hash."""
    return bundle / "tools"


def unpack_bundled(bundle: Path) -> str | None:
    """Puts the uv of a bundle into flatout's own folder; None where it has none that is whole."""
    wheels = [path for path in bundled_folder(bundle).glob("*/uv-*.whl")
              if hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name]  # fmt: skip
    folder = tools_folder() / "uv"
    part = store.part_path(folder)
    for wheel in wheels:
        with store.mapped_os_errors(folder), zipfile.ZipFile(wheel) as archive:
            found = [name for name in archive.namelist()
                     if name.endswith((".data/scripts/uv", ".data/scripts/uv.exe"))]  # fmt: skip
            if not found:
                continue
            shutil.rmtree(part, ignore_errors=True)
            program = part / "bin" / found[0].rpartition("/")[2]
            program.parent.mkdir(parents=True)
            program.write_bytes(archive.read(found[0]))
            program.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)
            store.move_into_place(part, folder)
    return find_uv()


def no_installer() -> RunFailed:
    """Bad news: there is neither uv nor pip."""
    return RunFailed(
        "no-installer",
        "there is neither uv nor pip to install packages with.",
        because=f"no `uv` was found, and {sys.executable} has no pip",
        fix="sudo apt install python3-pip, under Debian and Ubuntu; or install uv: "
        "https://docs.astral.sh/uv",
    )


def own_cache(path: str) -> dict[str, str]:
    """The variable that lets a uv of flatout's own keep what it keeps in flatout's folders.

    path: that uv. A person's own has a place of its own.
    """
    is_own = any(Path(path) == one for one in _own())
    return {"UV_CACHE_DIR": str(cache_folder() / "uv")} if is_own else {}


def _own() -> list[Path]:
    """Those that flatout's setup, or its install script, has brought."""
    name = "uv.exe" if sys.platform == "win32" else "uv"
    scripted = app_folder() / "uv" / name
    return [*_below(tools_folder() / "uv"), *([scripted] if scripted.is_file() else [])]


def _below(folder: Path) -> list[Path]:
    return [path for name in ("uv", "uv.exe") for path in (folder / "bin" / name,
            folder / "Scripts" / name) if path.is_file()]  # fmt: skip
