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
from flatout.schema.package_indexes import Indexes
from flatout.system import atomic_files
from flatout.system.command import run
from flatout.system.paths import app_folder, cache_folder, tools_folder
from flatout.system.process_env import setup_environment

# The first that writes a lock with addresses and hashes (`pylock.toml`).
_OLDEST = (0, 7)
_INSTALL_S = 600.0


def find_uv() -> str | None:
    """A uv that is new enough, on PATH, next to this Python, or where its installers put it."""
    name = "uv.exe" if sys.platform == "win32" else "uv"
    candidates = [Path(sys.executable).with_name(name), Path.home() / ".local" / "bin" / name,
                  Path.home() / ".cargo" / "bin" / name, *_own()]  # fmt: skip
    named = shutil.which("uv")
    for path in [
        *([named] if named else []),
        *(str(candidate) for candidate in candidates if candidate.is_file()),
    ]:
        done = run([path, "--version"], 10.0, setup_environment())
        version = re.search(r"(\d+)\.(\d+)", done.stdout) if done.exit_code == 0 else None
        if version and (int(version[1]), int(version[2])) >= _OLDEST:
            return path
    return None


def has_pip() -> bool:
    """Whether this Python can run pip."""
    return PathFinder.find_spec("pip") is not None


def install_uv(indexes: Indexes) -> str | None:
    """Installs uv into flatout's own folder; None where pip cannot get it."""
    folder = tools_folder() / "uv"
    part = atomic_files.part_path(folder)
    options = ["--index-url", indexes.default] if indexes.default else []
    argv = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps",
            "--only-binary", ":all:", "--target", str(part), *options, requirement()]  # fmt: skip
    with atomic_files.mapped_os_errors(folder):
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        environment = {"PIP_CACHE_DIR": str(cache_folder() / "pip"), **setup_environment()}
        done = run(argv, _INSTALL_S, environment)
        if done.exit_code != 0 or not _below(part):
            shutil.rmtree(part, ignore_errors=True)
            return None
        shutil.rmtree(folder, ignore_errors=True)
        atomic_files.move_into_place(part, folder)
    return find_uv()


def requirement() -> str:
    """A uv that is new enough, as a requirement."""
    return f"uv>={_OLDEST[0]}.{_OLDEST[1]}"


def bundled_folder(bundle: Path) -> Path:
    """The folder of uv in a bundle, named by the wheel's hash."""
    return bundle / "tools"


def unpack_bundled(bundle: Path) -> str | None:
    """Installs a bundle's uv into flatout's own folder; None where it has no intact one."""
    wheels = [path for path in bundled_folder(bundle).glob("*/uv-*.whl")
              if hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name]  # fmt: skip
    folder = tools_folder() / "uv"
    part = atomic_files.part_path(folder)
    for wheel in wheels:
        with atomic_files.mapped_os_errors(folder), zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist()
                       if name.endswith((".data/scripts/uv", ".data/scripts/uv.exe"))]  # fmt: skip
            if not members:
                continue
            shutil.rmtree(part, ignore_errors=True)
            program = part / "bin" / members[0].rpartition("/")[2]
            program.parent.mkdir(parents=True)
            program.write_bytes(archive.read(members[0]))
            program.chmod(0o755)
            shutil.rmtree(folder, ignore_errors=True)
            atomic_files.move_into_place(part, folder)
    return find_uv()


def no_installer() -> RunFailed:
    """The error for a machine with neither uv nor pip."""
    return RunFailed(
        "no-installer",
        "neither uv nor pip is available to install packages.",
        because=f"no `uv` was found, and {sys.executable} has no pip",
        fix="on Debian and Ubuntu: sudo apt install python3-pip; or install uv: "
        "https://docs.astral.sh/uv",
    )


def own_cache(path: str) -> dict[str, str]:
    """The variable that makes flatout's own uv keep its cache in flatout's folders.

    path: of the program. The user's own uv keeps its own cache.
    """
    is_own = any(Path(path) == own for own in _own())
    return {"UV_CACHE_DIR": str(cache_folder() / "uv")} if is_own else {}


def _own() -> list[Path]:
    """The uv that flatout's setup or its install script has installed."""
    name = "uv.exe" if sys.platform == "win32" else "uv"
    scripted = app_folder() / "uv" / name
    return [*_below(tools_folder() / "uv"), *([scripted] if scripted.is_file() else [])]


def _below(folder: Path) -> list[Path]:
    return [path for name in ("uv", "uv.exe") for path in (folder / "bin" / name,
            folder / "Scripts" / name) if path.is_file()]  # fmt: skip
