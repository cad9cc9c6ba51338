"""Connections between ranks: torch.distributed, with a limit and plain words for every wait.

A few numbers go through gloo; gradients too on CPUs, and through NCCL between GPUs. Small values
are in the store of the rendezvous, as are errors when nothing else gets through any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from flatout.engine.ranks.collectives import Collectives
from flatout.engine.ranks.failure_notices import WORD_LIMIT_S, FailureNotices
from flatout.engine.ranks.rank_env import RankEnv
from flatout.engine.ranks.rendezvous import (
    await_words,
    not_together,
    open_store,
    unlike,
    versions_here,
)
from flatout.engine.ranks.timeout_store import TimeoutStore
from flatout.engine.ranks.wait_watchdog import WaitWatchdog
from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.engine.runtime.stop_signals import TERMINATED, StoppedEarly, StopRequest
from flatout.errors import FlatoutError
from flatout.schema.finding import Finding
from flatout.system.clock import elapsed_s
from flatout.system.tcp_keepalive import TcpKeepalive, open_connections

T = TypeVar("T")

# A machine that cannot be reached for so long has gone; one that is slow answers all the same.
_CUT_LIMIT_S = 60.0
# What rank 0 writes once all ranks are there; otherwise it writes why training is off.
_ALL_CAME = "all came"


class Connection:
    """The ranks of a training, connected.

    num_met: how often all of them have exchanged numbers. tensors: sends them.

    Args:
        rank_env: which rank this is.
        run: that they train, by a name that no other one has: those of another run are not met,
            if they come to the same address.
    """

    def __init__(self, rank_env: RankEnv, run: str = "") -> None:
        self.rank_env = rank_env
        self._run = run
        self._notices: FailureNotices | None = None
        self._patience: WaitWatchdog | None = None
        self._cut_watch: TcpKeepalive | None = None
        self._table: _Table | None = None
        # Every rank has been to as many meetings as the others.
        self.num_met = 0
        self.tensors = Collectives(self._call, rank_env.limit_s, self._has_peer_left)
        # The kernel's connections to other ranks, where it shows them.
        self._to_peers: frozenset[int] = frozenset()
        # Once it has joined.
        self._store: Any = None

    def join(self, report: Callable[[Finding], None], request: StopRequest) -> None:
        """Waits for all ranks and connects them.

        Args:
            report: receives notes on long waits while they last, also from another thread.
            request: may ask for the end of it.

        Raises:
            RunFailed: ranks-not-together, with the ranks that are missing; rendezvous-port-taken;
                UsageError: ranks-differ.
            StoppedEarly: the first rank got a stop request.
        """
        rank_env = self.rank_env
        named = PrefixStore(f"flatout/{self._run}", open_store(rank_env))
        self._store = TimeoutStore(named, rank_env.limit_s)
        words = TimeoutStore(named, min(WORD_LIMIT_S, rank_env.limit_s))
        self._notices = FailureNotices(words, rank_env)
        self._patience = WaitWatchdog(self._store, rank_env)
        try:
            wrong = unlike(self._met(report, request))
        except RuntimeError as error:
            raise not_together(
                "the rendezvous store was lost before all ranks had joined.", str(error)
            ) from error
        if wrong is not None:
            raise wrong
        before = open_connections()
        self._call(lambda: self._connect(named, timedelta(seconds=rank_env.limit_s)))
        self._to_peers = open_connections() - before
        self._cut_watch = TcpKeepalive(min(_CUT_LIMIT_S, rank_env.limit_s))
        self._patience.begin(report)

    def _met(self, report: Callable[[Finding], None], request: StopRequest) -> list[bytes]:
        """Waits for all ranks; gives what each has laid down about itself, by rank."""
        store, rank_env = self._store, self.rank_env
        names = [f"here/{rank}" for rank in range(rank_env.size)]
        store.set(names[rank_env.rank], versions_here())
        try:
            # One rank looks who is missing, so that one rank says it.
            awaited = names if rank_env.is_first else ["all"]
            await_words(store, awaited, rank_env, report, request)
            word = _ALL_CAME if rank_env.is_first else store.get("all").decode()
        except StoppedEarly as early:
            word = early.reason
        if rank_env.is_first:
            store.set("all", word)
        if word == TERMINATED:
            raise not_together(
                "this rank was terminated before all ranks had joined.",
                "torchrun terminates all ranks when one fails",
            )
        if word != _ALL_CAME:
            raise StoppedEarly(word)
        return [store.get(name) for name in names]

    def _connect(self, store: Any, limit: timedelta) -> None:
        dist.init_process_group(
            "gloo",
            store=PrefixStore("gloo", store),
            rank=self.rank_env.rank,
            world_size=self.rank_env.size,
            timeout=limit,
        )

    def _has_peer_left(self) -> bool:
        """Whether a connection to another rank has ended: its process has, or it has left."""
        return not self._to_peers <= open_connections()

    def leave(self, error: BaseException | None) -> None:
        """Ends the connection; with an error, the others are left word of it."""
        if self._patience is not None:
            self._patience.end()
        if error is not None and self._notices is not None:
            self._notices.leave(error)
        if error is not None:
            # What another rank has left behind on a GPU would be waited for.
            self.tensors.abort()
        if dist.is_initialized():
            # A peer that has left first breaks the connection: it is being closed anyway.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        if self._cut_watch is not None:
            self._cut_watch.end()

    def numbers(self, own: list[float]) -> list[tuple[float, ...]]:
        """The same few numbers of every rank, by rank."""
        if self._table is None:
            self._table = _Table(self.rank_env.size, len(own))
        table = self._table
        table.write(own)
        self._call(lambda: dist.all_gather(table.rows, table.own))
        self.num_met += 1
        return table.read()

    def put(self, name: str, value: bytes) -> None:
        """Lays down a value of this rank's, for the others to take after the next meeting."""
        self._call(lambda: self._store.set(f"{name}/{self.rank_env.rank}", value))

    def take(self, name: str, rank: int) -> bytes:
        """A value that a rank has laid down before."""
        taken: bytes = self._call(lambda: self._store.get(f"{name}/{rank}"))
        return taken

    def drop(self, name: str) -> None:
        """Removes a value of this rank's, once all have taken it."""
        self._call(lambda: self._store.delete_key(f"{name}/{self.rank_env.rank}"))

    def loss_in(self, error: Exception) -> FlatoutError | None:
        """The finding for an error of torch.distributed that did not come through here."""
        is_sign = isinstance(error, dist.DistError) or "gloo" in str(error)
        if self._notices is None or not isinstance(error, RuntimeError) or not is_sign:
            return None
        return self._notices.of_loss(error)

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
        """Writes this rank's value."""
        for column, number in enumerate(own):
            self._sent[column] = number

    def read(self) -> list[tuple[float, ...]]:
        """Reads the values of all ranks, by rank."""
        numbers = self._got.tolist()
        width = self._num_columns
        return [tuple(numbers[at : at + width]) for at in range(0, len(numbers), width)]
