"""Runs and recipes that were written before names and modules changed are still read."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forked_commands import ForkedCommands

from flatout.schema.tuning import Known
from flatout.system.atomic_files import read_json

SRC = str(Path(__file__).resolve().parents[2] / "src")
WRITTEN = Path(__file__).parents[1] / "cases" / "written_before"
Run = Callable[..., Any]


@pytest.fixture
def flatout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: ForkedCommands) -> Run:
    """Runs a command on a state folder that has the old run; gives what it printed as JSON."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    shutil.copytree(WRITTEN / "run", tmp_path / "runs" / "tuned")

    def run(*arguments: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": SRC}
        done = forked.run((*arguments, "--json"), environment=environment, folder=Path.cwd())
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_run_written_before_is_shown(flatout: Run) -> None:
    shown = flatout("show", "tuned")
    run = shown["run"]
    assert (run["status"], run["step"], run["checkpoint_step"]) == ("finished", 690, 690)
    assert run["recipe"]["precision"]["value"] == "bf16" and len(run["validations"]) == 30
    assert shown["metrics"][-1]["step"] == 690


def test_run_written_before_is_resumed(flatout: Run, tmp_path: Path) -> None:
    resumed = flatout("train", "--resume", "tuned", "--epochs", "31", "--python", sys.executable)
    assert resumed["run"]["step"] == 713
    # Under the recipe that was found then, without another search.
    events = (tmp_path / "runs" / "tuned" / "events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in events]
    assert kinds.count("tuned") == 1 and kinds[-1] == "finished"


def test_recipe_written_before_is_used(flatout: Run) -> None:
    recipe = str(WRITTEN / "recipe.json")
    trained = flatout("train", "digits", "--recipe", recipe, "--steps", "2", "--name", "new")
    written = json.loads((WRITTEN / "recipe.json").read_text())
    assert trained["run"]["recipe"]["data_path"]["value"] == written["data_path"]["value"]


def test_found_recipe_written_before_is_read() -> None:
    known = read_json(WRITTEN / "known_recipe.json", Known)
    changes = {"data_path": "sliced", "optimizer_implementation": "fused", "num_threads": 1}
    assert known.decision.changes == changes
