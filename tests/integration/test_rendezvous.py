"""Ranks that wait for each other: they hear that they are to stop, or that it is in vain."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest
from support.free_port import free_port
from torch._C._distributed_c10d import PrefixStore

from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.ranks.rendezvous import open_store
from flatout.engine.runtime.stop_signals import TERMINATED, StoppedEarly, StopRequest
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.errors import RunFailed
from flatout.schema.change import Change
from flatout.schema.run_lines import Event, Stopped
from flatout.system import atomic_files
from flatout.system.store.run_folder import read_run

if TYPE_CHECKING:
    from conftest import Lab


@pytest.fixture
def first() -> RankEnv:
    """Rank 0 of three, the last of which never comes."""
    return RankEnv(rank=0, size=3, local_rank=0, host="127.0.0.1", port=free_port(), limit_s=60.0)


def load() -> NoReturn:
    raise AssertionError("nothing is trained")


def test_a_stop_is_heard_while_ranks_meet(lab: Lab, first: RankEnv) -> None:
    folder = lab.new()
    spec = read_run(folder).header.spec
    ranks = MultiRank(Connection(first))
    task = TrainTask(folder, spec, Change(), StopRequest(), ranks=ranks)
    # One from before is taken away by rank 0 as soon as it looks for others.
    folder.request_stop()
    with ThreadPoolExecutor(2) as pool:
        training = pool.submit(train_in, task, load)
        while folder.stop.exists():
            time.sleep(0.01)
        waiting = pool.submit(Connection(replace(first, rank=1)).join, print, StopRequest())
        folder.request_stop()
        for one in (training, waiting):
            with pytest.raises(StoppedEarly, match="asked to stop"):
                one.result()
    [reported] = atomic_files.read_lines(folder.events, Event)
    assert isinstance(reported, Stopped) and reported.reason == "asked to stop"
    assert not folder.stop.exists() and not folder.lock().is_taken()


def test_ranks_do_not_wait_where_nobody_can_come(first: RankEnv) -> None:
    second = replace(first, rank=1)
    keeper = open_store(first)
    ended = StopRequest()
    ended.make(TERMINATED)
    with pytest.raises(RunFailed, match="was terminated before all ranks had joined"):
        Connection(second).join(print, ended)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Connection(second, "run").join, print, StopRequest())
        PrefixStore("flatout/run", keeper).get("here/1")
        # As rank 0 goes that has refused to train.
        del keeper
        with pytest.raises(RunFailed, match="was lost before all ranks had joined") as reported:
            waiting.result()
    assert reported.value.rule == "ranks-not-together"
