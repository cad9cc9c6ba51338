"""The examples for TensorFlow and Paddle on two nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240


@pytest.mark.parametrize(
    ("framework", "script"),
    [("tensorflow", "tensorflow_workers.py"), ("paddle", "paddle_parallel.py")],
)
def test_example_trains_on_two_nodes(
    framework: str, script: str, tmp_path: Path, interpreter_with: Callable[[str], str]
) -> None:
    python = interpreter_with(framework)
    done = subprocess.run(
        [
            sys.executable, "-m", "flatout", "launch", "--framework", framework, "--nodes", "2",
            "--python", python, "--logs", str(tmp_path / "logs"), "--limit", str(LIMIT_S - 20),
            str(ROOT / "examples" / "launch" / script),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"node (\d)  \w+ (\d) of 2: loss 0\.0000", done.stdout)
    assert sorted(told) == [("0", "0"), ("1", "1")]
