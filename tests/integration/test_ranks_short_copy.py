"""Memory that runs out while a checkpoint is copied or put together: what several ranks do then."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forked_ranks import ForkedRanks

from flatout.engine.training.checkpoints import read_checkpoint
from flatout.schema.run_lines import Checkpointed, Event
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, read_run

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases" / "ranks"
# Of runs that take some seconds: ranks that wait for each other end with an error by then.
LIMIT_S = 200.0
Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="module")
def trained(once: Once, forked_ranks: ForkedRanks) -> Path:
    """The folder of all trainings, one after the other in the same two processes."""

    def train_all(folder: Path) -> None:
        own = [str(CASES), str(TESTS), os.environ.get("PYTHONPATH", "")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, own)))
            patch.setenv("FLATOUT_STATE", str(folder / "state"))
            patch.setenv("FLATOUT_RANKS_LIMIT_S", "60")
            forked_ranks.run(2, [str(CASES / "short_copy.py"), str(folder)], folder, LIMIT_S)

    return once("short-copy", train_all)


def seen(folder: Path, name: str) -> list[dict[str, Any]]:
    """What each rank has seen."""
    return [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in (0, 1)]


def checkpointed(run: RunFolder) -> dict[int, bool]:
    """Steps of checkpoints, each with whether it was copied first."""
    lines = atomic_files.read_lines(run.events, Event)
    return {one.step: one.is_copied for one in lines if isinstance(one, Checkpointed)}


@pytest.mark.parametrize("name", ["whole-once", "whole-always"])
def test_a_checkpoint_without_memory_for_its_copy_is_written_all_the_same(
    trained: Path, name: str
) -> None:
    first, other = seen(trained, name)
    [usual, _] = seen(trained, "whole")
    assert first["failed"] and first["failed"][0].startswith("aten.empty")
    assert first["error"] is None and other["failed"] == []
    # Nothing was taken back, and both ranks have the weights of a run with enough memory.
    assert first["digests"] == usual["digests"] and len(set(first["digests"])) == 1
    run = RunFolder(trained / name)
    assert read_run(run).status == "finished" and read_run(run).adaptations == ()
    copied = checkpointed(run)
    expected = {2: True, 4: False, 6: True, 8: True}
    if name == "whole-always":
        expected = {2: True, 4: False, 6: False, 8: False}
    assert copied == expected
    checkpoint, damaged = read_checkpoint(run)
    assert checkpoint is not None and checkpoint.step == 8 and damaged == []


@pytest.mark.parametrize("name", ["parts-once", "parts-other"])
def test_ranks_go_back_where_parts_cannot_be_put_together(trained: Path, name: str) -> None:
    results = seen(trained, name)
    short = int(name == "parts-other")
    assert len(results[short]["failed"]) == 1 and results[1 - short]["failed"] == []
    assert [one["error"] for one in results] == [None, None]
    digests = results[0]["digests"]
    assert len(set(digests)) == 1
    run = RunFolder(trained / name)
    [adaptation] = read_run(run).adaptations
    assert adaptation.part in ("checkpoint", "other") and not adaptation.is_in_place
    assert read_run(run).status == "finished"
    checkpoint, damaged = read_checkpoint(run)
    assert checkpoint is not None and checkpoint.step == 8 and damaged == []


def test_a_run_without_memory_for_any_checkpoint_ends_in_words(trained: Path) -> None:
    results = seen(trained, "parts-always")
    assert [one["error"] for one in results] == ["out-of-memory"] * 2
    run = RunFolder(trained / "parts-always")
    failure = read_run(run).failure
    assert failure is not None and failure.rule == "out-of-memory" and failure.fixes
    # What was saved before is there, and whole.
    checkpoint, damaged = read_checkpoint(run)
    assert checkpoint is not None and checkpoint.step == 2 and damaged == []
