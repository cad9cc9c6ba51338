"""Sweeps that are killed and resumed, by the campaign that does it for more trials."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="needs the package optuna"
)  # fmt: skip
def test_killed_sweeps_end_like_whole_ones(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "campaigns/sweep.py", "--experiments=digits", "--trials=3",
            "--kills=3", "--seeds=0", f"--out={tmp_path}",
        ],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    sweeps = json.loads(path.read_text(encoding="utf-8"))["details"]["sweeps"]
    assert [one["sampler"] for one in sweeps] == ["grid", "random"]
    assert [one["problem"] for one in sweeps] == [None, None]
