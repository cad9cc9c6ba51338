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
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from flatout.engine.failures import is_out_of_memory
from flatout.engine.listening import listening_socket
from flatout.engine.notices import Notices
from flatout.errors import RunFailed, UsageError
from flatout.nouns.placement import RANKS_LIMIT_NAME, RANKS_LIMIT_S

T = TypeVar("T")


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

    num_met: how often all of them have exchanged numbers.

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
        self._table: _Table | None = None
        # Every rank has been to as many meetings as the others.
        self.num_met = 0
        # Once it has joined.
        self._store: Any = None
        self._data: Any = None

    def join(self) -> None:
        """Waits for all ranks and connects them.

        Raises:
            RunFailed: ranks-not-together, with the ranks that are missing.
        """
        place, limit = self.place, timedelta(seconds=self._limit_s)
        is_kept = place.rank == 0 and not place.has_store
        try:
            listening = listening_socket(place.host, place.port) if is_kept else None
            kept = TCPStore(
                place.host,
                place.port,
                place.size,
                is_master=is_kept,
                timeout=limit,
                wait_for_workers=False,
                multi_tenant=True,
                master_listen_fd=listening,
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise _not_together(
                f"rank {place.rank} cannot reach {place.host}:{place.port}, where rank 0 waits.",
                str(error),
            ) from error
        self._store = store = PrefixStore(f"flatout/{self._run}", kept)
        self._notices = Notices(store, place.rank, place.size, self._limit_s)
        store.set(f"here/{place.rank}", "1")
        # One rank looks who is missing, so that one rank says it.
        names = [f"here/{rank}" for rank in range(place.size)] if place.rank == 0 else ["all"]
        try:
            store.wait(names, limit)
        except RuntimeError as error:
            missing = [str(rank) for rank, name in enumerate(names) if not store.check([name])]
            raise _not_together(
                f"rank {' and '.join(missing)} of {place.size} did not come within "
                f"{self._limit_s:g} s.",
                None,
            ) from error
        store.set("all", "1")
        self._call(lambda: self._connect(store, limit))

    def _connect(self, store: Any, limit: timedelta) -> None:
        dist.init_process_group(
            "gloo",
            store=PrefixStore("gloo", store),
            rank=self.place.rank,
            world_size=self.place.size,
            timeout=limit,
        )

    def attach(self, device: torch.device) -> None:
        """Gradients go from GPU to GPU where that is where they are."""
        if device.type == "cuda" and self._data is None:
            torch.cuda.set_device(device)
            limit = timedelta(seconds=self._limit_s)
            self._data = self._call(lambda: dist.new_group(backend="nccl", timeout=limit))

    def leave(self, error: BaseException | None) -> None:
        """Ends the connection; with an error, the others are left word of it."""
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

    def add_up(self, tensors: list[Tensor]) -> None:
        """Replaces tensors by their sums over the ranks."""

        def add() -> None:
            works = [dist.all_reduce(one, group=self._data, async_op=True) for one in tensors]
            for work in works:
                work.wait()

        self._call(add)

    def copy_from_first(self, tensors: list[Tensor]) -> None:
        """Replaces tensors by the first rank's."""
        self._call(lambda: [dist.broadcast(one, src=0, group=self._data) for one in tensors])

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            assert self._notices is not None
            raise self._notices.of_loss(error) from error


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


def _not_together(problem: str, because: str | None) -> RunFailed:
    lines = (because or "").strip().splitlines()
    return RunFailed(
        "ranks-not-together",
        problem,
        because=lines[0] if lines else None,
        fix="see the log of each rank, worker.rankN.log; `flatout doctor` looks at names and ports",
    )


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
