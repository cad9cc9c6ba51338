"""The rank of a process, and the address where ranks meet."""

from __future__ import annotations

import os
from dataclasses import dataclass

from flatout.errors import UsageError
from flatout.schema.placement import RANKS_LIMIT_S
from flatout.system.process_env import ranks_limit_s


@dataclass(frozen=True, kw_only=True)
class RankEnv:
    """The rank of a process, the world size, and the address of rank 0.

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
        """Whether this is rank 0, which logs for all ranks."""
        return self.rank == 0

    @property
    def keeps_store(self) -> bool:
        """Whether this rank hosts the rendezvous store."""
        return self.is_first and not self.has_store


def rank_env_here() -> RankEnv:
    """The place that this process's variables tell, named as torchrun names them.

    Raises:
        UsageError: ranks-not-together, bad-setting.
    """
    try:
        return RankEnv(
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
            "the rank environment is incomplete or invalid.",
            because="RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
            f"must be set: {error!r}",
            fix="start it with `flatout train --on` or torchrun",
        ) from error


def may_be_first() -> bool:
    """Whether this process is rank 0, or does not know which it is."""
    return os.environ.get("RANK", "0") == "0"
