"""How many processes read data, and when the first checkpoint is due."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.recipe.default_recipe import chosen_recipe
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import build
from flatout.engine.training.async_checkpoint import AsyncCheckpointer
from flatout.system.store.run_folder import RunFolder

if TYPE_CHECKING:
    from conftest import Lab

Plain = Callable[..., Experiment]


class Rows:
    """Thirty-two points, read one by one."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((6,), index / 32), index % 3


@pytest.mark.parametrize("num_bytes", [150_000_000, 1_500_000_000, 80_000_000_000])
def test_first_checkpoint_is_due_within_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    now_s = 0.0
    monkeypatch.setattr("flatout.engine.training.async_checkpoint.elapsed_s", lambda: now_s)
    saver = AsyncCheckpointer(RunFolder(tmp_path), None, StepTimer(torch.device("cpu")))
    saver.expect_size(num_bytes)
    assert not saver.is_due(1)
    now_s = 45.0
    assert saver.is_due(2)


SETTING = """
import multiprocessing
from flatout.engine.feed.loader_feed import Loading
Loading(num_workers=2, prefetch=2, pin_memory=False, persistent=True, collate=None).for_validation()
multiprocessing.set_start_method("spawn")
"""


def test_the_way_processes_are_started_can_still_be_chosen() -> None:
    done = subprocess.run([sys.executable, "-c", SETTING], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_validation_does_not_double_the_workers(lab: Lab, plain: Plain) -> None:
    counts: list[int] = []

    def counting(model: nn.Module, batch: Any) -> Tensor:
        if model.training:
            counts.append(len(psutil.Process().children(recursive=True)))
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    before = len(psutil.Process().children(recursive=True))
    experiment = plain(loss=counting, train_data=Rows, validation_data=Rows, epochs=3)
    lab.run(experiment, loader_workers=2)
    # The step that follows the last one read for an epoch may see them ending.
    assert max(counts) == before + 2


@pytest.mark.parametrize(
    ("num_cores", "num_ranks_here", "expected"),
    [(64, 1, 8), (64, 8, 8), (16, 8, 2), (2, 4, 1), (1, 1, 1)],
)
def test_ranks_share_the_cores_that_loaders_take(
    plain: Plain, num_cores: int, num_ranks_here: int, expected: int
) -> None:
    built = build(plain(train_data=Rows), 0, "cpu")
    facts = dataclasses.replace(built.facts, num_cores=num_cores, num_ranks_here=num_ranks_here)
    assert chosen_recipe(facts, {}).loader_workers.value == expected
