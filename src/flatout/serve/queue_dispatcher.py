"""The dispatcher: a bounded queue in front of replicas, swaps, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection

import msgspec

from flatout.schema.finding import Finding
from flatout.schema.serve_control import ReplicaPlan, ServeEvent, ServeSwapped
from flatout.schema.serve_model import ServedModel
from flatout.schema.units import counted_text, seconds_text
from flatout.serve.batching import late_by_s
from flatout.serve.dispatcher import Answer, DispatchState, DispatchTotals, InferRequest
from flatout.serve.pending import Pending, RequestQueue
from flatout.serve.replica_pool import ReplicaPool, not_measured
from flatout.serve.serve_errors import (
    NothingToSwapBack,
    ServerBusy,
    ServerStopping,
    SwapRunning,
)
from flatout.system.clock import elapsed_s

_MOST_RECENT = 4096
_LOG = logging.getLogger("flatout.serve")


class DispatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the queue allows. max_queue: requests that wait; as many streams may wait in addition.

    timeout_s: for a request; a client's own deadline may be shorter. hang_s: for a batch, before
    its replica is killed.
    """

    max_queue: int = 1024
    timeout_s: float = 30.0
    hang_s: float = 30.0


class QueueDispatcher:
    """Answers requests with replicas; see `dispatcher.Dispatcher`.

    Args:
        limits: of the queue.
        report: called with what happens.
    """

    def __init__(self, limits: DispatchLimits, report: Callable[[ServeEvent], None]) -> None:
        self._limits = limits
        self._report = report
        self._totals = DispatchTotals()
        self._pool: ReplicaPool | None = None
        self._warming: ReplicaPool | None = None
        # Seconds from arrival to answer, of the last requests.
        self.recent_s: deque[float] = deque(maxlen=_MOST_RECENT)
        self._retiring: dict[asyncio.Task[None], ReplicaPool] = {}
        self._measuring: set[asyncio.Task[None]] = set()
        self._before: ReplicaPlan | None = None
        self._num_requests = 0
        self._num_replicas = 0
        self._is_stopping = False

    async def start(self, plan: ReplicaPlan) -> None:
        """Starts the first replicas, and waits until they are warm.

        Raises:
            ReplicaNotStarted
        """
        self._pool = await self._warm_up(plan)

    @property
    def model(self) -> ServedModel:
        """The model that new requests get."""
        return self._current.model

    @property
    def plan(self) -> ReplicaPlan:
        """What the replicas that answer were started with."""
        return self._current.plan

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What its replicas have reported."""
        return self._current.findings

    @property
    def batch_samples(self) -> int:
        """The most samples of a batch."""
        times = self._current.times
        return times.limit if times is not None else 1

    @property
    def is_ready(self) -> bool:
        """Whether a replica can answer, and new requests are accepted."""
        return not self._is_stopping and self._pool is not None and self._pool.num_ready > 0

    async def submit(self, request: InferRequest) -> Answer:
        """The answer to a request."""
        pool = self._current
        pending = self._accepted(pool, request, is_stream=False)
        try:
            return await pending.future
        except asyncio.CancelledError:
            pool.abandon(pending)
            raise

    async def stream(self, request: InferRequest) -> AsyncIterator[str]:
        """The pieces of a generated answer."""
        pool = self._current
        pending = self._accepted(pool, request, is_stream=True)
        assert pending.pieces is not None
        try:
            while (piece := await pending.pieces.get()) is not None:
                yield piece
            await pending.future
        finally:
            if not pending.future.done():
                pending.future.cancel()
                pool.abandon(pending)

    def state(self) -> DispatchState:
        """Queue, replicas and totals."""
        pools = self._pools()
        return DispatchState(
            num_queued=sum(len(pool.queue) for pool in pools),
            queued_samples=sum(_samples_in(pool.queue) for pool in pools),
            max_queue=self._limits.max_queue,
            wait_s=self._pool.wait_s() if self._pool is not None else None,
            replicas=tuple(replica.status() for pool in pools for replica in pool.replicas),
            totals=self._totals,
            batch_limit=self.batch_samples if self._pool is not None else None,
            is_stopping=self._is_stopping,
            is_swapping=self._warming is not None,
        )

    async def swap(self, plan: ReplicaPlan) -> ServeSwapped:
        """Replaces the model: new replicas warm up, then take over; the old finish what they have.

        Raises:
            SwapRunning, ServerStopping, ReplicaNotStarted
        """
        if self._is_stopping:
            raise ServerStopping
        if self._warming is not None:
            raise SwapRunning
        began_s = elapsed_s()
        pool = await self._warm_up(plan)
        if self._is_stopping:
            await pool.kill()
            raise ServerStopping
        old, self._pool = self._current, pool
        self._before = old.plan
        self._totals.num_swaps += 1
        draining = asyncio.get_running_loop().create_task(old.drain())
        self._retiring[draining] = old
        draining.add_done_callback(lambda task: self._retiring.pop(task, None))
        measuring = asyncio.get_running_loop().create_task(self._measure_after(draining, pool))
        self._measuring.add(measuring)
        measuring.add_done_callback(self._measuring.discard)
        swapped = ServeSwapped(model=pool.model, warmup_s=elapsed_s() - began_s)
        self._report(swapped)
        return swapped

    async def swap_back(self) -> ServeSwapped:
        """Swaps to the model that the last swap replaced.

        Raises:
            As `swap`, and NothingToSwapBack.
        """
        if self._before is None:
            raise NothingToSwapBack
        return await self.swap(self._before)

    def refuse_new(self) -> int:
        """Accepts no more requests; how many are not answered yet."""
        self._is_stopping = True
        return sum(pool.num_open for pool in self._pools())

    async def stop(self) -> None:
        """Answers what was accepted, and ends the replicas."""
        self._is_stopping = True
        _cancel_all(self._measuring)
        if self._warming is not None:
            await self._warming.kill()
        current = [self._pool.drain()] if self._pool is not None else []
        await asyncio.gather(*current, *self._retiring)

    async def kill(self) -> int:
        """Ends the replicas at once; how many accepted requests get no answer."""
        num_open = self.refuse_new()
        _cancel_all(self._measuring)
        await asyncio.gather(*(pool.kill() for pool in self._pools()))
        for pool in self._pools():
            pool.fail_all(ServerStopping())
        _cancel_all(self._retiring)
        return num_open

    @property
    def _current(self) -> ReplicaPool:
        assert self._pool is not None, "start() comes first"
        return self._pool

    def _pools(self) -> list[ReplicaPool]:
        pools = [*self._retiring.values(), self._pool, self._warming]
        return [pool for pool in pools if pool is not None]

    async def _warm_up(self, plan: ReplicaPlan) -> ReplicaPool:
        pool = ReplicaPool(
            plan,
            first_index=self._num_replicas,
            hang_s=self._limits.hang_s,
            totals=self._totals,
            recent_s=self.recent_s,
            report=self._report,
        )
        self._num_replicas += plan.num_cores or len(plan.starts)
        self._warming = pool
        try:
            await pool.start()
        finally:
            self._warming = None
        return pool

    async def _measure_after(self, draining: asyncio.Task[None], pool: ReplicaPool) -> None:
        await asyncio.wait({draining})
        if pool is not self._pool:
            return
        try:
            measured = await pool.measure_again()
        except Exception as error:  # noqa: BLE001 - nothing waits for this task
            _LOG.error("batches could not be measured again", exc_info=error)
            measured = not_measured(pool, f"{type(error).__name__}: {error}")
        # Another swap may have come in between.
        if measured is None or pool is not self._pool:
            return
        self._totals.num_unmeasured += measured.finding is not None
        self._report(measured)

    def _accepted(self, pool: ReplicaPool, request: InferRequest, *, is_stream: bool) -> Pending:
        """The request in the queue.

        Raises:
            ServerStopping, ServerBusy
        """
        if self._is_stopping:
            raise ServerStopping
        limit_s = self._limits.timeout_s
        if request.deadline_s is not None:
            limit_s = min(limit_s, request.deadline_s)
        self._refuse_if_busy(pool, request, limit_s, is_stream=is_stream)
        self._num_requests += 1
        self._totals.num_requests += 1
        now_s = elapsed_s()
        pending = Pending(
            request,
            self._num_requests,
            is_stream=is_stream,
            accepted_s=now_s,
            deadline_s=now_s + limit_s,
        )
        pool.add(pending)
        return pending

    def _refuse_if_busy(
        self, pool: ReplicaPool, request: InferRequest, limit_s: float, *, is_stream: bool
    ) -> None:
        wait_s = pool.wait_s()
        # Streams do not take the room of others, which do not wait for them.
        num_waiting = pool.queue.num_waiting(is_stream=is_stream)
        if num_waiting >= self._limits.max_queue:
            self._totals.num_busy += 1
            waiting = counted_text(num_waiting, "stream" if is_stream else "request")
            raise ServerBusy(f"its queue is full, with {waiting}", wait_s)
        if is_stream:
            # How long those before it take is not known.
            return
        own_s = pool.times.expected_s(request.num_samples) if pool.times is not None else None
        late_s = late_by_s(wait_s, own_s, limit_s)
        if late_s is not None:
            self._totals.num_busy += 1
            raise ServerBusy(
                f"it would be answered in about {seconds_text(limit_s + late_s)}, and may take "
                f"{seconds_text(limit_s)}",
                late_s,
            )


def _cancel_all(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()


def _samples_in(queue: RequestQueue) -> int:
    """Samples that wait, one in each stream."""
    return queue.num_samples + queue.num_waiting(is_stream=True)
