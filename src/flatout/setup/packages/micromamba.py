"""micromamba: one program that makes conda environments, for machines without conda."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.request import OpenerDirector

import msgspec

from flatout.errors import RunFailed
from flatout.schema.shell_quoting import typed_here
from flatout.schema.units import bytes_text
from flatout.setup.model.environment_plan import SetupStep
from flatout.setup.packages import micromamba
from flatout.system import atomic_files
from flatout.system.download import download
from flatout.system.paths import cache_folder, tools_folder

_VERSION = "2.9.0-0"
_RELEASES_URL = "https://github.com/mamba-org/micromamba-releases/releases/download"


class Release(msgspec.Struct, frozen=True):
    """The program for one system."""

    name: str
    sha256: str
    size_bytes: int


# Source: mamba-org/micromamba-releases, release 2.9.0-0: each file has a `.sha256` next to it.
_RELEASES: Mapping[tuple[str, str], Release] = MappingProxyType({
    ("linux", "x86_64"): Release(
        "micromamba-linux-64",
        "366cd9cd8be14df1ab8ed50352a82111082a36686b2d389fdb79a92c3fafb3e3", 18_292_808),
    ("linux", "aarch64"): Release(
        "micromamba-linux-aarch64",
        "9f93b974adcb4d166996af969b6cd371287d1a3e52733704727884d9b74cb7a7", 22_020_296),
    ("darwin", "x86_64"): Release(
        "micromamba-osx-64",
        "1e71054bb3ac9a076e21f7ec48acfef536f9b3f1408f371a942784bf5ef83d8a", 16_317_928),
    ("darwin", "arm64"): Release(
        "micromamba-osx-arm64",
        "ec2a072f028e1a7cf20f3e2e74d5a8127cf5a5f27636375b5359811565f4e5be", 14_596_096),
    ("win32", "AMD64"): Release(
        "micromamba-win-64.exe",
        "a6d804394b2418991c4e29562853eaace2f2ce9d9da661a98e74e02e8dbb44b0", 11_454_464),
})  # fmt: skip


def own_path() -> Path:
    """The path of flatout's own copy."""
    name = "micromamba.exe" if sys.platform == "win32" else "micromamba"
    return tools_folder() / "micromamba" / name


def find_own() -> str | None:
    """The micromamba that flatout has downloaded."""
    path = own_path()
    return str(path) if path.is_file() and os.access(path, os.X_OK) else None


def release_here() -> Release | None:
    """The program for this system; None where there is none."""
    return _RELEASES.get((sys.platform, platform.machine()))


def step(release: Release) -> SetupStep:
    """The download, as a step of a plan."""
    remove = ("Remove-Item", "-Recurse") if sys.platform == "win32" else ("rm", "-r")
    version, size = _VERSION.partition("-")[0], bytes_text(release.size_bytes)
    return SetupStep(
        text=f"download micromamba {version} ({size}), since conda is not installed",
        changes=str(own_path()),
        undo=typed_here((*remove, str(own_path().parent))),
        size_bytes=release.size_bytes,
    )


def fetch(release: Release, opener: OpenerDirector) -> Iterator[tuple[int, int]]:
    """Downloads it into flatout's own folder; yields bytes done and bytes in total.

    `FLATOUT_MICROMAMBA_MIRROR` replaces the address of its releases.

    Raises:
        RunFailed: download-failed, disk-full.
    """
    path = own_path()

    def check(part: Path) -> str | None:
        with atomic_files.mapped_os_errors(part), open(part, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != release.sha256:
            return f"its SHA-256 is {digest}, not {release.sha256}"
        # Before it gets its final name, so that a file of that name is always executable.
        part.chmod(0o755)
        return None

    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    mirror = os.environ.get("FLATOUT_MICROMAMBA_MIRROR", "").rstrip("/") or _RELEASES_URL
    url = f"{mirror}/{_VERSION}/{release.name}"
    try:
        yield from download([url], path, release.size_bytes, check, opener)
    except RunFailed as error:
        if error.rule != "download-failed":
            raise
        raise RunFailed(
            "download-failed",
            "could not download micromamba.",
            because=error.because,
            fix="check the network (HTTPS_PROXY, if you need one); or name a mirror: "
            "FLATOUT_MICROMAMBA_MIRROR=URL; or install conda, mamba or micromamba yourself",
        ) from error


def own_settings(path: str) -> dict[str, str]:
    """Variables that make flatout's own micromamba use flatout's cache.

    path: of the program. The user's own micromamba keeps its own cache.
    """
    is_own = path == str(own_path())
    return {"MAMBA_ROOT_PREFIX": str(cache_folder() / "micromamba")} if is_own else {}


def find_conda() -> str | None:
    """mamba, micromamba or conda, the quickest first; else the micromamba that flatout has.

    `mamba shell init` and `conda init` define a function in the shell, and name the program, which
    need not be on the path, in a variable.
    """
    on_path = (shutil.which(name) for name in ("mamba", "micromamba", "conda"))
    named = (shutil.which(os.environ.get(name, "")) for name in ("MAMBA_EXE", "CONDA_EXE"))
    return next((path for path in (*on_path, *named) if path), micromamba.find_own())
