"""How ranks reach each other: torch.distributed, with a limit and plain words for every wait.

A few numbers go through gloo; gradients too on CPUs, and through NCCL between GPUs. Small values
lie in the store of the rendezvous, as do bad news when nothing else gets through any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from flatout.engine.failures import is_out_of_memory
from flatout.engine.limited_store import LimitedStore
from flatout.engine.notices import WORD_LIMIT_S, Notices
from flatout.engine.patience import Patience
from flatout.engine.place import Place
from flatout.engine.rendezvous import (
    await_words,
    not_together,
    open_store,
    unlike,
    versions_here,
)
from flatout.engine.transfer import Transfer
from flatout.engine.watch import TERMINATED, StoppedEarly, StopRequest
from flatout.errors import FlatoutError
from flatout.nouns.finding import Finding
from flatout.system.clock import elapsed_s
from flatout.system.keepalive import CutWatch

T = TypeVar("T")

# A machine that cannot be reached for so long has gone; one that is slow answers all the same.
_CUT_LIMIT_S = 60.0
# What rank 0 lays down once it need not wait any longer; else it is why nobody is to train.
_ALL_CAME = "all came"


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
        self._notices: Notices | None = None
        self._patience: Patience | None = None
        self._cut_watch: CutWatch | None = None
        self._table: _Table | None = None
        # Every rank has been to as many meetings as the others.
        self.num_met = 0
        self.tensors = Transfer(self._call, place.limit_s)
        # Once it has joined.
        self._store: Any = None

    def join(self, tell: Callable[[Finding], None], request: StopRequest) -> None:
        """Waits for all ranks and connects them.

        Args:
            tell: is told of long waits while they last, also from another thread.
            request: may ask for the end of it.

        Raises:
            RunFailed: ranks-not-together, with the ranks that are missing; rendezvous-port-taken;
                UsageError: ranks-differ.
            StoppedEarly: the first rank was asked to stop.
        """
        place = self.place
        named = PrefixStore(f"flatout/{self._run}", open_store(place))
        self._store = LimitedStore(named, place.limit_s)
        words = LimitedStore(named, min(WORD_LIMIT_S, place.limit_s))
        self._notices = Notices(words, place)
        self._patience = Patience(self._store, place)
        try:
            wrong = unlike(self._met(tell, request))
        except RuntimeError as error:
            raise not_together(
                "the place where the ranks meet has gone before all had come.", str(error)
            ) from error
        if wrong is not None:
            raise wrong
        self._call(lambda: self._connect(named, timedelta(seconds=place.limit_s)))
        self._cut_watch = CutWatch(min(_CUT_LIMIT_S, place.limit_s))
        self._patience.begin(tell)

    def _met(self, tell: Callable[[Finding], None], request: StopRequest) -> list[bytes]:
        """Waits for all ranks; gives what each has laid down about itself, by rank."""
        store, place = self._store, self.place
        names = [f"here/{rank}" for rank in range(place.size)]
        store.set(names[place.rank], versions_here())
        try:
            # One rank looks who is missing, so that one rank says it.
            awaited = names if place.is_first else ["all"]
            await_words(store, awaited, place, tell, request)
            word = _ALL_CAME if place.is_first else store.get("all").decode()
        except StoppedEarly as early:
            word = early.reason
        if place.is_first:
            store.set("all", word)
        if word == TERMINATED:
            raise not_together(
                "this rank was ended before all had come.",
                "torchrun ends all ranks when one has failed",
            )
        if word != _ALL_CAME:
            raise StoppedEarly(word)
        return [store.get(name) for name in names]

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
        if self._cut_watch is not None:
            self._cut_watch.end()

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

    def loss_in(self, error: Exception) -> FlatoutError | None:
        """What to say of an error of torch.distributed that did not come through here."""
        is_sign = isinstance(error, dist.DistError) or "gloo" in str(error)
        if self._notices is None or not isinstance(error, RuntimeError) or not is_sign:
            return None
        return self._notices.of_loss(error)

    def _call(self, call: Callable[[], T]) -> T:
        assert self._notices is not None and self._patience is not None
        self._patience.meeting, self._patience.since_s = self.num_met, elapsed_s()
        try:
            self.tensors.settle()
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
