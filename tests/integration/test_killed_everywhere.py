"""Some of the kills that the benchmark makes before each file operation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc: Linux")


@pytest.mark.parametrize(
    ("attack", "every"), [("apply", 6), ("undo", 3), ("ingest", 3), ("train digits", 20)]
)
def test_all_is_whole_when_killed_before_a_file_operation(
    attack: str, every: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable, "campaigns/killed_everywhere.py", "--only", attack,
            "--every", str(every), "--out", str(tmp_path),
        ],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
