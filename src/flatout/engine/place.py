"""Which of several ranks a process is, and where they meet."""

from __future__ import annotations

import os
from dataclasses import dataclass

from flatout.errors import UsageError
from flatout.nouns.placement import RANKS_LIMIT_S
from flatout.system.variables import ranks_limit_s


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank a process is, among how many, and where rank 0 waits.

    num_here: how many of them are on this machine.
    has_store: the launcher keeps the store that rank 0 would keep otherwise.
    limit_s: how long ranks wait for each other.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    num_here: int = 1
    has_store: bool = False
    limit_s: float = RANKS_LIMIT_S

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which tells for all what it sees."""
        return self.rank == 0

    @property
    def keeps_store(self) -> bool:
        """Whether the others find here what ranks lay down for each other."""
        return self.is_first and not self.has_store


def place_here() -> Place:
    """The place that this process's variables tell, named as torchrun names them.

    Raises:
        UsageError: ranks-not-together, bad-setting.
    """
    try:
        return Place(
            rank=int(os.environ["RANK"]),
            size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ["LOCAL_RANK"]),
            host=os.environ["MASTER_ADDR"],
            port=int(os.environ["MASTER_PORT"]),
            num_here=int(os.environ["LOCAL_WORLD_SIZE"]),
            has_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            limit_s=ranks_limit_s(),
        )
    except (KeyError, ValueError) as error:
        raise UsageError(
            "ranks-not-together",
            "this process is to be a rank, and does not know which.",
            because="of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
            f"MASTER_PORT: {error!r}",
            fix="let `flatout train --on` or torchrun start it",
        ) from error


def may_be_first() -> bool:
    """Whether this process is rank 0, or does not know which it is."""
    return os.environ.get("RANK", "0") == "0"
