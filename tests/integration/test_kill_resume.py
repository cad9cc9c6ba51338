"""Ten kills at random moments, by the benchmark that makes a hundred of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_resumed_weights_are_identical_when_processes_are_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "campaigns/kill_resume.py",
            "--kills=10",
            "--seed=1",
            f"--out={tmp_path}",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = tmp_path.glob("*.json")
    kills = json.loads(path.read_text(encoding="utf-8"))["details"]["kills"]
    assert [kill["problem"] for kill in kills] == [None] * 10
    assert {kill["target"] for kill in kills} == {
        "worker", "command line", "loader worker", "tree"
    }  # fmt: skip
    assert sum(kill["in_write"] for kill in kills) >= 2
