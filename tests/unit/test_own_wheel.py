"""flatout as a wheel of the files that are running."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import flatout
from flatout.setup.packages import flatout_wheel
from flatout.setup.packages.wheel_store import path_of


def test_own_wheel_holds_what_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path))
    pin = flatout_wheel.build()
    with zipfile.ZipFile(path_of(pin)) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"flatout-{flatout.__version__}.dist-info/METADATA").decode()
    package = Path(flatout.__file__).parent
    ours = [*package.rglob("*.py"), *package.rglob("*.tmpl")]
    assert {f"flatout/{path.relative_to(package).as_posix()}" for path in ours} <= names
    assert "Requires-Dist: msgspec" in metadata
    assert {"flatout/docs/errors.md", "flatout/docs/README.md", "flatout/setup/install.sh"} <= names
    assert not [name for name in names if "__pycache__" in name]
    # The same files make the same wheel.
    assert flatout_wheel.build() == pin


def test_own_wheel_can_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_CACHE", str(tmp_path / "cache"))
    wheel = path_of(flatout_wheel.build())
    target = tmp_path / "target"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target",
         str(target), str(wheel)], check=True, timeout=60,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import flatout; print(flatout.__file__)"],
        env={"PYTHONPATH": str(target), "PATH": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()).is_relative_to(target)
