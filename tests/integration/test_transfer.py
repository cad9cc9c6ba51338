"""What is sent between GPUs, as far as it can be seen without one: when it is waited for."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flatout.engine.transfer import Transfer


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


def transfer(monkeypatch: pytest.MonkeyPatch, work: Work, error: Error = Error.SUCCESS) -> Transfer:
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: work)
    made = Transfer(lambda call: call(), 0.2)
    made._nccl = Backend(error)
    return made


def test_host_goes_on_while_gradients_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(asks_needed=3)
    sending = transfer(monkeypatch, work)
    sending.add_up([torch.zeros(2)])
    assert work.num_asked == 0
    sending.settle()
    assert work.num_asked == 3
    sending.settle()
    assert work.num_asked == 3


@pytest.mark.parametrize(
    ("asks_needed", "error", "said"),
    [(10**9, Error.SUCCESS, "taken more than 0.2 s"), (1, Error.TIMEOUT, "given up.*TIMEOUT")],
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
