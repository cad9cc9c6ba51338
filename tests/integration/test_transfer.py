"""What is sent between GPUs, as far as it can be seen without one: when it is waited for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.free_port import free_port
from torch.distributed import distributed_c10d

from flatout.engine.ranks import collectives
from flatout.engine.ranks.collectives import Collectives
from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.gradient_buffers import ReplicatedGradients
from flatout.engine.ranks.gradient_sync import GradientSync, LocalGradients
from flatout.engine.ranks.process_group import MultiRank, StepFlags
from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.ranks.synced_passes import SyncedPasses
from flatout.engine.tensors.wire import written


class Error(Enum):
    """As torch names what NCCL has met."""

    SUCCESS = 0
    TIMEOUT = 1


class Work:
    """A transfer on its way; asked: how often somebody has looked whether it has arrived."""

    def __init__(self, asks_needed: int) -> None:
        self.asks_needed = asks_needed
        self.num_asked = 0

    def wait(self) -> None:
        """Only the stream waits."""

    def is_completed(self) -> bool:
        self.num_asked += 1
        return self.num_asked >= self.asks_needed


class Backend:
    """NCCL, as the group of its ranks."""

    def __init__(self, error: Error) -> None:
        self.error = error

    def _get_backend(self, device: torch.device) -> Backend:
        return self

    def get_error(self) -> Error:
        return self.error


def transfer(
    monkeypatch: pytest.MonkeyPatch,
    work: Work,
    error: Error = Error.SUCCESS,
    *,
    limit_s: float = 0.2,
    has_peer_left: Callable[[], bool] = lambda: False,
) -> Collectives:
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: work)
    made = Collectives(lambda call: call(), limit_s, has_peer_left)
    made._nccl = Backend(error)
    return made


def test_host_goes_on_while_gradients_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(asks_needed=3)
    sending = transfer(monkeypatch, work, limit_s=600.0)
    sending.add_up([torch.zeros(2)])
    assert work.num_asked == 0
    sending.settle()
    assert work.num_asked == 3
    sending.settle()
    assert work.num_asked == 3


@pytest.mark.parametrize(
    ("asks_needed", "error", "said"),
    [(10**9, Error.SUCCESS, "took more than 0.2 s"), (1, Error.TIMEOUT, "aborted.*TIMEOUT")],
)
def test_what_does_not_arrive_is_raised_before_anything_else_is_sent(
    monkeypatch: pytest.MonkeyPatch, asks_needed: int, error: Error, said: str
) -> None:
    sending = transfer(monkeypatch, Work(asks_needed), error)
    sending.add_up([torch.zeros(2)])
    with pytest.raises(RuntimeError, match=said):
        sending.settle()


def test_gloo_is_waited_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work: Any = Work(asks_needed=10**9)
    sending = transfer(monkeypatch, work)
    sending._nccl = None
    sending.add_up([torch.zeros(2)])
    sending.settle()
    assert work.num_asked == 0


def test_a_rank_that_has_died_is_missed_long_before_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives, "_CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(collectives, "_ARRIVES_WITHIN_S", 0.05)
    never = Work(asks_needed=10**9)
    sending = transfer(monkeypatch, never, limit_s=600.0, has_peer_left=lambda: True)
    sending.add_up([torch.zeros(2)])
    with pytest.raises(RuntimeError, match="closed its connections"):
        sending.settle()


def test_what_arrives_soon_after_a_rank_has_left_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_CHECK_EVERY_S", 0.0)
    sending = transfer(monkeypatch, Work(20), limit_s=600.0, has_peer_left=lambda: True)
    sending.add_up([torch.zeros(2)])
    sending.settle()


class OneMet(Connection):
    """A connection of a rank that is the only one, and writes down what it does."""

    def __init__(self, tensors: Collectives) -> None:
        super().__init__(
            RankEnv(rank=0, size=1, local_rank=0, host="127.0.0.1", port=0, limit_s=1.0)
        )
        self.tensors = tensors
        self.was_asked: list[int] = []
        self.work = Work(asks_needed=1)

    def numbers(self, own: list[float]) -> list[tuple[float, ...]]:
        """The meeting; was_asked: how often what is under way was looked at by then."""
        self.was_asked.append(self.work.num_asked)
        self.num_met += 1
        return [tuple(own)]


def test_ranks_meet_before_a_transfer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(asks_needed=1)
    connection = OneMet(transfer(monkeypatch, work))
    connection.work = work
    group = MultiRank(connection)
    model = torch.nn.Linear(2, 1)
    gradients = ReplicatedGradients(list(model.parameters()))
    exchange = GradientSync(group, model, gradients, batch_size=2)
    for _ in range(2):
        model(torch.ones(2, 2)).mean().backward()
        exchange.shared(LocalGradients(loss=torch.tensor(1.0), count=None, num_samples=2))
    # The first update's gradients were waited for after the second vote.
    assert connection.was_asked == [0, 0] and work.num_asked == 1
    monkeypatch.setattr(connection, "put", lambda *_: None)
    monkeypatch.setattr(connection, "take", lambda *_: written([1], list[int]))
    group.all_gather([1], list[int])
    assert connection.was_asked == [0, 0, 1] and work.num_asked == 2


def test_nobody_waits_for_what_a_pass_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    of_pass, of_update = Work(asks_needed=1), Work(asks_needed=1)
    connection = OneMet(transfer(monkeypatch, of_update))
    group, passes = MultiRank(connection), SyncedPasses(MultiRank(connection))
    connection.tensors.add_up([torch.zeros(2)], is_update=True)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: of_pass)
    for _ in range(3):
        passes.add_up(torch.zeros(2))
    group.all_reduce_flags(StepFlags())
    connection.tensors.settle(is_all=False)
    assert (of_update.num_asked, of_pass.num_asked) == (1, 0)
    connection.tensors.settle()
    assert of_pass.num_asked == 1


def test_a_rank_that_fails_gives_up_what_is_under_way_between_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(distributed_c10d, "_abort_process_group", aborted.append)
    connection = OneMet(transfer(monkeypatch, Work(1)))
    nccl = connection.tensors._nccl
    connection.leave(None)
    assert aborted == []
    connection.leave(RuntimeError("it failed"))
    assert aborted == [nccl]
    connection.leave(RuntimeError("it failed"))
    assert aborted == [nccl]


MEETING = """
import os, signal, sys, time
from flatout.engine.ranks.connection import Connection
from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.runtime.stop_signals import StopRequest

rank, port = map(int, sys.argv[1:])
rank_env = RankEnv(rank=rank, size=2, local_rank=rank, host="127.0.0.1", port=port, limit_s=60.0)
connection = Connection(rank_env)
connection.join(print, StopRequest())
connection.numbers([0.0])
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
until = time.monotonic() + 60
while not connection._has_peer_left() and time.monotonic() < until:
    time.sleep(0.05)
print("missed" if connection._has_peer_left() else "still there", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a connection's state")
def test_a_killed_rank_is_seen_without_asking_it() -> None:
    port = free_port()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", MEETING, str(rank), str(port)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [one.communicate(timeout=120)[0] for one in both]
    assert said[0].strip() == "missed"
