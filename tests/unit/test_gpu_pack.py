"""What is carried to a machine with a GPU: unpacked where it is missing, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gpu_pack
import pytest


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of two packages, of which this Python has one."""
    monkeypatch.setattr(gpu_pack, "PACK", tmp_path)
    for name in ("never_made", "pytest"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "version = 'of the pack'")
    return tmp_path


def test_only_what_is_missing_is_unpacked(pack: Path) -> None:
    paths = gpu_pack.unpacked(sys.executable)
    assert paths == [str(gpu_pack.ROOT / "src"), str(pack / "unpacked")]
    told = subprocess.run(
        [sys.executable, "-c", "import never_made; print(never_made.version)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "of the pack"
    assert not (pack / "unpacked" / "pytest").exists()
    assert gpu_pack.unpacked(sys.executable) == paths


def test_source_alone_is_found_without_a_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_pack, "PACK", tmp_path / "none")
    assert gpu_pack.unpacked(sys.executable) == [str(gpu_pack.ROOT / "src")]
