"""A user's environment: found by a folder or a name, and read without importing a package.

Its interpreter runs isolated (`-I`): neither PYTHONPATH nor the user's own site folder is seen.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import RunFailed, UsageError
from flatout.schema.installed_packages import EnvironmentKind, InspectedEnvironment, Installed
from flatout.setup.packages.micromamba import find_conda
from flatout.system import python_packages
from flatout.system.command import run
from flatout.system.host_system import LocalSystem, Unread
from flatout.system.process_env import setup_environment
from flatout.system.store import environments

_LIMIT_S = 60.0
# Packages that come from elsewhere, a venv's `--system-site-packages` are not part of it.
_LIST_PACKAGES = """
import json, os, platform, re, sys
from importlib import metadata
found = {}
prefix = os.path.realpath(sys.prefix)
own = os.path.join(prefix, "")
for one in metadata.distributions():
    name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
    if not name or name in found:
        continue
    if not os.path.realpath(str(one.locate_file(""))).startswith(own):
        continue
    direct = one.read_text("direct_url.json")
    found[name] = {
        "name": name, "version": one.version, "requires": list(one.requires or ()),
        "installer": (one.read_text("INSTALLER") or "").strip() or None,
        "is_requested": one.read_text("REQUESTED") is not None,
        "is_local": direct is not None,
        "size_bytes": sum(file.size or 0 for file in one.files or ()) or None,
    }
version = ".".join(map(str, sys.version_info[:3]))
print(json.dumps({"packages": found, "prefix": prefix, "markers": {
    "python_version": ".".join(map(str, sys.version_info[:2])), "python_full_version": version,
    "implementation_name": sys.implementation.name, "implementation_version": version,
    "platform_python_implementation": platform.python_implementation(),
}}))
"""


class _Reply(msgspec.Struct):
    packages: dict[str, Installed]
    prefix: str
    markers: dict[str, str]


class IsolatedSystem(LocalSystem):
    """This machine, whose interpreters see nothing but their own environment."""

    def packages(self, python: str, names: Sequence[str]) -> str | Unread:
        """Queries the interpreter in a child process."""
        argv = [python, "-I", "-c", python_packages.source(), *names]
        done = run(argv, _LIMIT_S, setup_environment())
        if done.exit_code == 0:
            return done.stdout
        return Unread(f"{python}: {done.reason or done.stderr.strip()[-200:]}")


def inspect_environment(text: str) -> InspectedEnvironment:
    """The environment in a folder, or of a name: of `flatout envs`, else of conda.

    Raises:
        UsageError: no-such-environment, environment-not-repaired.
    """
    folder, kind = _find(text)
    name = "python.exe" if kind == "conda" else r"Scripts\python.exe"
    python = folder / (name if sys.platform == "win32" else "bin/python")
    _refuse(folder, kind)
    return read_inside(text, folder, kind, str(python))


def read_inside(
    name: str, folder: Path, kind: EnvironmentKind, python: str
) -> InspectedEnvironment:
    """The current contents of an environment.

    Raises:
        RunFailed: environment-not-readable.
    """
    done = run([python, "-I", "-c", _LIST_PACKAGES], _LIMIT_S, setup_environment())
    try:
        reply = msgspec.json.decode((done.stdout.strip().splitlines() or [""])[-1], type=_Reply)
    except msgspec.DecodeError as error:
        raise RunFailed(
            "environment-not-readable",
            f"{python} could not list the packages in {folder}.",
            because=done.reason or done.stderr.strip()[-300:] or str(error),
            fix="its base Python may be gone; create a new environment: flatout setup",
        ) from error
    return InspectedEnvironment(
        name=name, folder=str(folder), python=python, kind=kind, markers=reply.markers,
        packages=reply.packages,
    )  # fmt: skip


def _find(text: str) -> tuple[Path, EnvironmentKind]:
    made = environments.read_environment(text)
    if made is not None:
        return Path(made.folder), "conda" if made.installer == "conda" else "venv"
    folder = Path(text).expanduser().absolute()
    # The path of its interpreter, or of the interpreter's folder, stands for the environment.
    if folder.is_file():
        folder = folder.parent
    for parent in (folder, folder.parent) if folder.name in ("bin", "Scripts") else (folder,):
        if (parent / "conda-meta").is_dir():
            return parent, "conda"
        if (parent / "pyvenv.cfg").is_file():
            return parent, "venv"
    above = folder.parent if folder.name in ("bin", "Scripts") else folder
    if any((above / path).exists() for path in ("bin/python3", "python.exe")):
        raise _not_repaired(str(above), "it belongs to the system, whose programs may need it")
    if folder.is_dir():
        raise UsageError(
            "no-such-environment",
            f"{folder} is not a Python environment.",
            because="it has neither pyvenv.cfg nor conda-meta",
            fix="pass a folder that `python -m venv`, uv or conda has created; or create one: "
            "flatout setup",
        )
    named = None if text == "base" else _conda_folder(text)
    if named is not None:
        return named, "conda"
    if text == "base":
        raise _not_repaired("conda's `base`", "conda itself runs in it")
    raise UsageError(
        "no-such-environment",
        f"there is no environment `{text}`.",
        because="it is neither a folder nor the name of an environment of flatout or conda",
        fix="pass its folder, such as .venv; `flatout envs` lists those created by flatout",
    )


def _conda_folder(name: str) -> Path | None:
    """A conda environment of that name: from conda itself, else from its list of environments."""
    folders: list[str] = []
    program = find_conda()
    if program is not None:
        done = run([program, "env", "list", "--json"], _LIMIT_S, setup_environment())
        try:
            folders = list(json.loads(done.stdout)["envs"])
        except (ValueError, KeyError, TypeError):
            folders = []
    known = Path.home() / ".conda" / "environments.txt"
    if known.is_file():
        folders += known.read_text(encoding="utf-8", errors="replace").splitlines()
    roots = (Path(path) for path in folders if Path(path).name == name)
    return next((root for root in roots if (root / "conda-meta").is_dir()), None)


def _refuse(folder: Path, kind: EnvironmentKind) -> None:
    """Refuses environments in which the system, conda or flatout itself runs."""
    here = os.path.realpath(folder)
    if here == os.path.realpath(sys.prefix):
        raise _not_repaired(
            str(folder), "this flatout runs in it, and would change its own packages"
        )
    is_base = (folder / "condabin").is_dir() or any((folder / "conda-meta").glob("conda-[0-9]*"))
    if kind == "conda" and is_base:
        raise _not_repaired(f"{folder}, conda's `base`", "conda itself runs in it")


def _not_repaired(what: str, because: str) -> UsageError:
    return UsageError(
        "environment-not-repaired",
        f"flatout does not change {what}.",
        because=because,
        fix="create a separate environment for the framework: flatout setup",
    )
