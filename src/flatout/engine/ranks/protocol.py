"""Ranks: processes that train one model together, each with its share of every batch.

Whenever ranks need each other they meet, and every meeting begins with the same exchange of a few
numbers. So a rank whose memory has run out can say so wherever the others are, and no rank waits
for it forever: gradients are added up only after all have said that theirs are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from flatout.engine.feed.feed import BatchShard
from flatout.engine.runtime.oom import OutOfMemory
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.schema.finding import Finding

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StepRequests:
    """Requests after an update: end, write a checkpoint, take less memory.

    has_moved: the driver has moved memory out of the GPU.
    """

    stop: str | None = None
    is_save_due: bool = False
    has_moved: bool = False


@dataclass(frozen=True, kw_only=True)
class OomReport:
    """Memory was short: after how many updates, in the middle of what, and whether that can be
    repeated with less.
    """

    shortage: OutOfMemory
    step: int
    place: str
    can_repeat: bool


class RankGroup(Protocol):
    """The interface of a training to its ranks; `SingleRank` implements it for a single one.

    num_here: how many of them are on this machine.
    """

    rank: int
    size: int
    num_here: int

    @property
    def is_first(self) -> bool:
        """Whether this rank writes: the run's folder has one writer."""
        ...

    @property
    def share(self) -> BatchShard:
        """Its part of every batch."""
        ...

    def join(self, report: Callable[[Finding], None], request: StopRequest) -> None:
        """Meets the others for the first time.

        Args:
            report: hears of long waits, from any thread.
            request: may end the wait.
        """
        ...

    def leave(self, error: BaseException | None = None) -> None:
        """Leaves the group; an error is sent to the others as the reason."""
        ...

    def device_name(self, name: str | None) -> str | None:
        """The device of this rank, where the recipe has that one."""
        ...

    def attach(self, device: torch.device) -> None:
        """Gradients are on this device from now on."""
        ...

    def broadcast_from_rank0(
        self, make: Callable[[], T], kind: Any = None, *, about: str = ""
    ) -> T:
        """Rank 0's result; the others do not make it, and raise any error that rank 0 has raised.

        Args:
            make: makes it.
            kind: its type, where that is one of ours; see `tensors/wire.py`.
            about: what it is, where its type does not say it: ranks that meet about something else
                are not taken for each other.
        """
        ...

    def all_gather(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """The values of all ranks, by rank; kind, about: as for `broadcast_from_rank0`."""
        ...

    def copy_from_first(self, model: nn.Module) -> None:
        """Gives the model the first rank's weights and buffers."""
        ...

    def agree_on_oom(self, trouble: OomReport) -> OomReport:
        """Agrees on a common reaction to out-of-memory; every rank reports here."""
        ...


class SingleRank:
    """A single rank, without communication."""

    rank = 0
    size = 1
    num_here = 1
    is_first = True
    share = BatchShard()

    def join(self, report: Callable[[Finding], None], request: StopRequest) -> None:
        """See RankGroup."""

    def leave(self, error: BaseException | None = None) -> None:
        """See RankGroup."""

    def device_name(self, name: str | None) -> str | None:
        """See RankGroup."""
        return name

    def attach(self, device: torch.device) -> None:
        """See RankGroup."""

    def broadcast_from_rank0(
        self, make: Callable[[], T], kind: Any = None, *, about: str = ""
    ) -> T:
        """See RankGroup."""
        return make()

    def all_gather(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """See RankGroup."""
        return [value]

    def copy_from_first(self, model: nn.Module) -> None:
        """See RankGroup."""

    def agree_on_oom(self, trouble: OomReport) -> OomReport:
        """See RankGroup."""
        return trouble


ALONE = SingleRank()
