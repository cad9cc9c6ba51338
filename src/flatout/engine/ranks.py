"""Ranks: processes that train one model together, each with its share of every batch.

Whenever ranks need each other they meet, and every meeting begins with the same exchange of a few
numbers. So a rank whose memory has run out can say so wherever the others are, and nobody waits
for it in vain: gradients are added up only after all have said that theirs are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from flatout.engine.shortage import Shortage
from flatout.engine.watch import StopRequest
from flatout.nouns.finding import Finding

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is to be done after this update: end, write a checkpoint, take less memory.

    has_moved: the driver has moved memory out of the GPU.
    """

    stop: str | None = None
    is_save_due: bool = False
    has_moved: bool = False


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Memory was short: after how many updates, in the midst of what, and whether that can be
    repeated with less.
    """

    shortage: Shortage
    step: int
    place: str
    can_repeat: bool


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rank's part of every batch: contiguous, and as large as the others' to within a sample."""

    rank: int = 0
    size: int = 1

    def bounds(self, num_samples: int) -> tuple[int, int]:
        """From which sample of a batch of so many to before which this rank's are."""
        each, more = divmod(num_samples, self.size)
        start = self.rank * each + min(self.rank, more)
        return start, start + each + (self.rank < more)


class Ranks(Protocol):
    """What a training asks of its ranks; `Alone` answers for a single one.

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
    def share(self) -> Share:
        """Its part of every batch."""
        ...

    def join(self, tell: Callable[[Finding], None], request: StopRequest) -> None:
        """Meets the others for the first time.

        Args:
            tell: hears of long waits, from any thread.
            request: may end the wait.
        """
        ...

    def leave(self, error: BaseException | None = None) -> None:
        """Needs the others no more; an error is why it cannot go on, which they are told."""
        ...

    def device_name(self, name: str | None) -> str | None:
        """The device of this rank, where the recipe has that one."""
        ...

    def attach(self, device: torch.device) -> None:
        """Gradients lie on that device from now on."""
        ...

    def told(self, make: Callable[[], T], kind: Any = None, *, about: str = "") -> T:
        """What the first rank makes; the others do not call it, and raise what it has raised.

        Args:
            make: makes it.
            kind: its type, where that is one of ours; see message.py.
            about: what it is, where its type does not say it: ranks that meet about something else
                are not taken for each other.
        """
        ...

    def gathered(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """The values of all ranks, by rank; kind, about: as for `told`."""
        ...

    def copy_from_first(self, model: nn.Module) -> None:
        """Gives the model the first rank's weights and buffers."""
        ...

    def settle(self, trouble: Trouble) -> Trouble:
        """What all ranks do about want of memory, which each of them reports here."""
        ...


class Alone:
    """A single rank, which asks nobody."""

    rank = 0
    size = 1
    num_here = 1
    is_first = True
    share = Share()

    def join(self, tell: Callable[[Finding], None], request: StopRequest) -> None:
        """See Ranks."""

    def leave(self, error: BaseException | None = None) -> None:
        """See Ranks."""

    def device_name(self, name: str | None) -> str | None:
        """See Ranks."""
        return name

    def attach(self, device: torch.device) -> None:
        """See Ranks."""

    def told(self, make: Callable[[], T], kind: Any = None, *, about: str = "") -> T:
        """See Ranks."""
        return make()

    def gathered(self, value: T, kind: Any = None, *, about: str = "") -> list[T]:
        """See Ranks."""
        return [value]

    def copy_from_first(self, model: nn.Module) -> None:
        """See Ranks."""

    def settle(self, trouble: Trouble) -> Trouble:
        """See Ranks."""
        return trouble


ALONE = Alone()
