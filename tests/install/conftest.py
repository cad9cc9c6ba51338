"""flatout as a person gets it: built once with all it needs, and machines with hardly anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
# What install.sh may count on: what every Linux has.
PROGRAMS = (
    "sh", "basename", "cat", "cut", "date", "dirname", "grep", "gzip", "head", "ln", "mkdir", "mv",
    "readlink", "rm", "sed", "sha256sum", "sleep", "tail", "tar", "uname",
)  # fmt: skip


def run(*argv: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Runs a program without input to its end."""
    return subprocess.run(
        [str(one) for one in argv], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=LIMIT_S, check=False, **more,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source archive of flatout, and wheels of all that they need."""
    folder = tmp_path_factory.mktemp("built")
    done = run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    if done.returncode == 0:
        wheel = next(folder.glob("flatout-*.whl"))
        wanted = [wheel, "hatchling>=1.25", "pip"]
        done = run(sys.executable, "-m", "pip", "download", "--quiet", "-d", folder, *wanted)
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}"
        if "No module named build" in said:
            pytest.skip("needs build: pip install 'flatout[dev]'")
        if any(word in said for word in ("ConnectionError", "No matching distribution")):
            pytest.skip("needs a package index that can be reached")
        pytest.fail(said)
    return folder


# Large, and used by nothing that is tried with what the script has installed.
STOOD_FOR = ("numpy", "safetensors", "nvidia_ml_py")


@pytest.fixture(scope="session")
def wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this flatout beside all it needs; for what is large stands one with nothing."""
    folder = tmp_path_factory.mktemp("light")
    for path in built.glob("*.whl"):
        if not path.name.startswith(STOOD_FOR):
            shutil.copy(path, folder)
    for name in STOOD_FOR:
        write_empty_wheel(folder, name)
    return next(folder.glob("flatout-*.whl"))


def write_empty_wheel(folder: Path, name: str) -> None:
    """A wheel of that name, of a version that fits everything, with nothing in it."""
    info = f"{name}-99.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-99.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr(f"{info}/WHEEL", tags)
        file.writestr(f"{info}/RECORD", "")


class Person:
    """Somebody on a fresh machine: an empty home, and few programs.

    has_python: python3 is among them.
    """

    def __init__(self, folder: Path, *, has_python: bool = True) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in PROGRAMS:
            found = shutil.which(name)
            if found is None:
                pytest.skip(f"needs {name}")
            (self.programs / name).symlink_to(found)
        if has_python:
            # Not the environment's, which would bring its packages along.
            (self.programs / "python3").symlink_to(os.path.realpath(sys.executable))
        self.app = self.home / ".local/share/flatout/app"
        self.launcher = self.home / ".local/bin/flatout"

    def add(self, name: str) -> None:
        """Another program of this machine."""
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"needs {name}")
        (self.programs / name).symlink_to(found)

    def environment(self, **more: str) -> dict[str, str]:
        """All that a program is given."""
        return {
            "HOME": str(self.home), "PATH": str(self.programs), "SHELL": "/bin/bash",
            # Half of an install's time, and nothing that is tried here needs it.
            "PIP_NO_COMPILE": "1", **more,
        }  # fmt: skip

    def install(
        self, *arguments: object, script: Path = ROOT / "install.sh", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the script, without a terminal."""
        return run(
            "/bin/sh", script, *arguments, env=self.environment(**more), cwd=self.home,
            start_new_session=True,
        )  # fmt: skip

    def flatout(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs what was installed."""
        return run(self.launcher, *arguments, env=self.environment(), cwd=self.home)

    def environments(self) -> list[Path]:
        """Those that the script has made."""
        return sorted(self.app.glob("environment-*"))


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """Somebody who has Python."""
    return Person(tmp_path)


@pytest.fixture
def bare_person(tmp_path: Path) -> Person:
    """Somebody who has none."""
    return Person(tmp_path, has_python=False)
