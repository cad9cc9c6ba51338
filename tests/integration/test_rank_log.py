"""Where the time of a rank other than the first goes, in its own file."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.training.metrics_log import RankLog
from flatout.schema.alarm import RankProgress
from flatout.system.atomic_files import read_lines


def test_a_rank_writes_where_its_time_goes_once_a_second(tmp_path: Path) -> None:
    path = tmp_path / "rank1.jsonl"
    timer = StepTimer(torch.device("cpu"))
    log = RankLog(path, 1, timer)
    log.add(torch.tensor(1.0), 8)
    assert read_lines(path, RankProgress) == []
    time.sleep(1.05)
    timer.mark("exchange")
    for _ in range(3):
        log.add(torch.tensor(1.0), 8)
    (line,) = read_lines(path, RankProgress)
    assert line.rank == 1
    assert line.split_s["exchange"] >= 1.0


def test_a_rank_that_cannot_write_there_trains_all_the_same(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "missing" / "rank1.jsonl", 1, StepTimer(torch.device("cpu")))
    time.sleep(1.05)
    log.add({"loss": torch.tensor(1.0)}, 8)
    assert not log.is_due()
