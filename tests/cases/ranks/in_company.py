"""What each of two ranks runs: they tell each other things, and at the end one loses its GPU."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from rank_experiments import rows
from support.ranks_runs import new_run, ranks_here, train
from torch import Tensor, nn

from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.runlog.history import History
from flatout.engine.runtime import rng
from flatout.engine.training import updater
from flatout.errors import FlatoutError, RunFailed
from flatout.system.exit_code import end

LOOPBACK = ("127.0.0.1", "::1")


def reported_values(ranks: MultiRank) -> None:
    """Values come as they were, of the kind that they are of."""
    states = rng.generator_states(torch.device("cpu"))
    value = {"nan": math.nan, "pair": (1, None), 3: [torch.arange(3), True], "dice": states}
    for reported in (
        ranks.broadcast_from_rank0(lambda: value),
        ranks.all_gather(value)[1 - ranks.rank],
    ):
        assert math.isnan(reported["nan"]) and reported["pair"] == (1, None)
        assert reported[3][0].tolist() == [0, 1, 2]
        rng.restore_generators(reported["dice"], torch.device("cpu"))
        assert random.getstate() == reported["dice"]["python"]
    made = History(decisions=(), epochs=3, versions={"torch": "2"}, is_finished=False)
    assert ranks.broadcast_from_rank0(lambda: made, History) == made


def reported_errors(ranks: MultiRank) -> None:
    """What the first rank raises is told by its rule; there it keeps its traceback."""

    def divide() -> float:
        return 1 / len([])

    with pytest.raises(ZeroDivisionError if ranks.is_first else FlatoutError) as caught:
        ranks.broadcast_from_rank0(divide)
    if ranks.is_first:
        assert caught.traceback[-1].name == "divide"
    else:
        assert caught.value.rule == "experiment-raised"
        assert "in_company.py" in caught.value.because and "rank 0: " in caught.value.problem


def reported_apart(ranks: MultiRank) -> None:
    """Ranks that meet about different things do not take one for the other."""
    with pytest.raises((AssertionError, FlatoutError)):
        ranks.all_gather(1, about="a checkpoint" if ranks.is_first else "a validation")
    assert ranks.all_gather(ranks.rank) == [0, 1]


def heard_here_only() -> None:
    """Nobody else's machine reaches what they listen at."""
    connections = psutil.Process().net_connections("tcp")
    places = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    assert places and places <= set(LOOPBACK), places


def lose_gpu(ranks: MultiRank, folder: Path) -> None:
    """Memory runs out on rank 1, and then its GPU is gone: rank 0 has less taken from there on."""

    def settle(device: torch.device) -> None:
        raise RunFailed("gpu-state-lost", "the GPU cannot be used any more.", fix="resume")

    num_calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal num_calls
        num_calls += model.training
        if num_calls == 4 and ranks.rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows().loss(model, batch)  # type: ignore[misc,return-value]

    pytest.MonkeyPatch().setattr(updater, "free_after_oom", settle)
    with pytest.raises(RunFailed, match="the GPU cannot be used any more") as caught:
        train(new_run(folder / "lost", ranks), dataclasses.replace(rows(), loss=loss), ranks)
    assert caught.value.rule == "gpu-state-lost"


if __name__ == "__main__":
    here = ranks_here()
    assert isinstance(here, MultiRank)
    heard_here_only()
    reported_values(here)
    reported_errors(here)
    reported_apart(here)
    lose_gpu(here, Path(sys.argv[1]))
    end(0)
