"""Sweeps that are killed and resumed, by the campaign that does it for more trials."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.forked_commands import without

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="needs the package optuna"
)


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words, f"--out={folder}"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip


def details_of(folder: Path, campaign: str, *options: str) -> dict[str, Any]:
    """What a campaign has written about itself, once it has ended well."""
    done = ended(folder, f"campaigns/{campaign}", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.json")
    details: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["details"]
    return details


def test_killed_sweeps_end_like_whole_ones(tmp_path: Path) -> None:
    options = ("--experiments=digits", "--trials=3", "--kills=3", "--seeds=0")
    sweeps = details_of(tmp_path, "sweep.py", *options)["sweeps"]
    assert [one["sampler"] for one in sweeps] == ["grid", "random"]
    assert [one["problem"] for one in sweeps] == [None, None]


def test_sweep_over_ranks_ends_as_it_does_without_lost_ranks(tmp_path: Path) -> None:
    details = details_of(tmp_path, "sweep_nodes.py", "--places=here", "--trials=3")
    assert details["here"]["problem"] is None and set(details["here"]["stories"]) == {"2", "3"}
    assert details["missing"] == ["ray", "containers"]
    (path,) = tmp_path.iterdir()
    assert "-sweep-nodes-without-ray-containers-" in path.name


def test_campaign_over_ray_is_refused_without_ray(tmp_path: Path) -> None:
    code = f"import sys; {without(['ray'])}sys.path.insert(0, 'campaigns'); import sweep_nodes; "
    code += "sweep_nodes.main()"
    done = ended(tmp_path, "-c", code, "--places=here,ray", "--trials=3")
    assert done.returncode == 1 and "needs Ray" in done.stderr and not list(tmp_path.iterdir())
