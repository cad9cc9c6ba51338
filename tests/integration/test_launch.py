"""The example for torch on two nodes: all its processes have one model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "launch"


def test_torch_example_trains_on_two_nodes(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "flatout", "launch", "--framework", "torch", "--nodes", "2",
            "--logs", str(tmp_path / "logs"), "--limit", "200", str(EXAMPLES / "torch_spawn.py"),
            "2",
        ],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = re.findall(r"node (\d)  rank (\d) of 4: loss 0\.0000", done.stdout)
    assert sorted(told) == [("0", "0"), ("0", "1"), ("1", "2"), ("1", "3")]
    assert "rank 3 of 4" in (tmp_path / "logs/node1.log").read_text()
