"""The examples for torch on two nodes: all their processes have one model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "launch"


@pytest.mark.parametrize(
    ("script", "arguments", "nodes_of_ranks"),
    [("torch_spawn.py", ["2"], "0011"), ("torch_ddp.py", [], "01")],
)
def test_torch_example_trains_on_two_nodes(
    script: str, arguments: list[str], nodes_of_ranks: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "flatout", "launch", "--framework", "torch", "--nodes", "2",
            "--logs", str(tmp_path / "logs"), "--limit", "200", str(EXAMPLES / script), *arguments,
        ],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count = len(nodes_of_ranks)
    reported = re.findall(rf"node (\d)  rank (\d) of {count} on \S+: loss (0\.\d+)", done.stdout)
    reported.sort(key=lambda one: int(one[1]))
    assert [(node, rank) for node, rank, _ in reported] == [
        (node, str(rank)) for rank, node in enumerate(nodes_of_ranks)
    ]
    # Each had other batches: of models that were trained apart, no two would have the same loss.
    losses = {loss for _, _, loss in reported}
    assert len(losses) == 1 and 0 < float(losses.pop()) < 0.1
    assert f"rank {count - 1} of {count}" in (tmp_path / "logs/node1.log").read_text()
