"""How ranks reach each other: torch.distributed, with a limit and plain words for every wait.

A few numbers go through gloo; gradients too on CPUs, and through NCCL between GPUs. Small values
lie in the store of the rendezvous, as do bad news when nothing else gets through any more.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from flatout.engine.failures import is_out_of_memory
from flatout.engine.notices import Notices
from flatout.engine.patience import Patience
from flatout.engine.rendezvous import await_words, open_store, unlike, versions_here
from flatout.engine.transfer import Transfer
from flatout.errors import UsageError
from flatout.nouns.finding import Finding
from flatout.nouns.placement import RANKS_LIMIT_NAME, RANKS_LIMIT_S
from flatout.system.clock import elapsed_s
from flatout.system.keepalive import notice_cuts

T = TypeVar("T")

# A machine that cannot be reached for so long has gone; one that is slow answers all the same.
_CUT_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which rank a process is, among how many, and where rank 0 waits.

    num_here: how many of them are on this machine.
    has_store: the launcher keeps the store that rank 0 would keep otherwise.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    num_here: int = 1
    has_store: bool = False


def place_here() -> Place:
    """The place that this process's variables tell, named as torchrun names them.

    Raises:
        UsageError: ranks-not-together.
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


class Connection:
    """The ranks of a training, connected.

    num_met: how often all of them have exchanged numbers. tensors: sends them.

    Args:
        place: which rank this is.
        run: that they train, by a name that no other one has: those of another run are not met,
            if they come to the same address.
    """

    def __init__(self, place: Place, run: str = "") -> None:
        self.place = place
        self._run = run
        self._limit_s = ranks_limit_s()
        self._notices: Notices | None = None
        self._patience: Patience | None = None
        self._table: _Table | None = None
        # Every rank has been to as many meetings as the others.
        self.num_met = 0
        self.tensors = Transfer(self._call, self._limit_s)
        # Once it has joined.
        self._store: Any = None

    def join(self, tell: Callable[[Finding], None]) -> None:
        """Waits for all ranks and connects them.

        Args:
            tell: is told of long waits while they last, also from another thread.

        Raises:
            RunFailed: ranks-not-together, with the ranks that are missing; rendezvous-port-taken;
                UsageError: ranks-differ.
        """
        place, limit_s = self.place, self._limit_s
        is_kept = place.rank == 0 and not place.has_store
        kept = open_store(
            (place.host, place.port), place.rank, place.size, is_kept=is_kept, limit_s=limit_s
        )
        self._store = store = PrefixStore(f"flatout/{self._run}", kept)
        self._notices = Notices(store, place.rank, place.size, limit_s)
        self._patience = Patience(store, place.rank, place.size, limit_s)
        names = [f"here/{rank}" for rank in range(place.size)]
        store.set(names[place.rank], versions_here())
        # One rank looks who is missing, so that one rank says it.
        awaited = names if place.rank == 0 else ["all"]
        await_words(store, awaited, place.size, limit_s, tell)
        store.set("all", "1")
        wrong = unlike(self._call(lambda: [store.get(name) for name in names]))
        if wrong is not None:
            raise wrong
        self._call(lambda: self._connect(store, timedelta(seconds=limit_s)))
        notice_cuts(min(_CUT_LIMIT_S, limit_s))
        self._patience.begin(tell)

    def _connect(self, store: Any, limit: timedelta) -> None:
        dist.init_process_group(
            "gloo",
            store=PrefixStore("gloo", store),
            rank=self.place.rank,
            world_size=self.place.size,
            timeout=limit,
        )

    def leave(self, error: BaseException | None) -> None:
        """Ends the connection; with an error, the others are left word of it."""
        if self._patience is not None:
            self._patience.end()
        if error is not None and self._notices is not None:
            self._notices.leave(error)
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def numbers(self, own: list[float]) -> list[tuple[float, ...]]:
        """The same few numbers of every rank, by rank."""
        if self._table is None:
            self._table = _Table(self.place.size, len(own))
        table = self._table
        table.write(own)
        self._call(lambda: dist.all_gather(table.rows, table.own))
        self.num_met += 1
        return table.read()

    def put(self, name: str, value: bytes) -> None:
        """Lays down a value of this rank's, for the others to take after the next meeting."""
        self._call(lambda: self._store.set(f"{name}/{self.place.rank}", value))

    def take(self, name: str, rank: int) -> bytes:
        """A value that a rank has laid down before."""
        taken: bytes = self._call(lambda: self._store.get(f"{name}/{rank}"))
        return taken

    def drop(self, name: str) -> None:
        """Removes a value of this rank's, once all have taken it."""
        self._call(lambda: self._store.delete_key(f"{name}/{self.place.rank}"))

    def _call(self, call: Callable[[], T]) -> T:
        assert self._notices is not None and self._patience is not None
        self._patience.meeting, self._patience.since_s = self.num_met, elapsed_s()
        try:
            return call()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise self._notices.of_loss(error) from error
        finally:
            self._patience.since_s = None


class _Table:
    """Numbers that travel, in memory that is made once and read without torch: between a vote and
    what it allows, nothing may fail.
    """

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self._num_columns = num_columns
        sent, got = (bytearray(8 * num_columns * rows) for rows in (1, num_rows))
        self._sent, self._got = memoryview(sent).cast("d"), memoryview(got).cast("d")
        self.own = torch.frombuffer(sent, dtype=torch.float64)
        self.rows = list(torch.frombuffer(got, dtype=torch.float64).split(num_columns))

    def write(self, own: list[float]) -> None:
        """What this rank sends."""
        for column, number in enumerate(own):
            self._sent[column] = number

    def read(self) -> list[tuple[float, ...]]:
        """What all ranks have sent, by rank."""
        numbers = self._got.tolist()
        each = self._num_columns
        return [tuple(numbers[at : at + each]) for at in range(0, len(numbers), each)]


def ranks_limit_s() -> float:
    """How long ranks wait for each other.

    Raises:
        UsageError: bad-setting.
    """
    text = os.environ.get(RANKS_LIMIT_NAME, str(RANKS_LIMIT_S))
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise UsageError(
            "bad-setting",
            f"{RANKS_LIMIT_NAME}={text} is no number of seconds.",
            fix=f"{RANKS_LIMIT_NAME}={RANKS_LIMIT_S:g}, or leave it out",
        )
    return limit_s
