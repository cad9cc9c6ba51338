"""The queue of a model and the replicas that answer it.

A swap makes a second pool: it warms up while the first one answers, and takes its place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from flatout.schema.finding import Finding, Fix
from flatout.schema.serve_control import BatchesMeasured, ReplicaPlan, ServeEvent
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import Answered, BatchDone, ReplicaReady
from flatout.schema.units import seconds_text
from flatout.serve.batching import BatchTimes, second_due_in_s, wait_s
from flatout.serve.dispatcher import Answer, DispatchTotals
from flatout.serve.pending import Pending, RequestQueue, SentBatch
from flatout.serve.replica import MOST_BATCHES, MOST_STREAMS, Replica
from flatout.serve.replica_plan import shared_out
from flatout.serve.serve_errors import (
    InputNotAccepted,
    ModelFailed,
    RequestKilledModel,
    ServerBusy,
)
from flatout.system.clock import elapsed_s
from flatout.system.replica_process import num_copies_that_fit

# So often deadlines are looked at: a client notices no smaller delay of a refusal.
_EVERY_S = 0.05


class ReplicaPool:
    """Replicas of one model, and the requests for it.

    Args:
        plan: what to start.
        first_index: number of the first replica, so that each of a server has its own.
        hang_s: how long a batch may take before its replica is killed.
        totals: of the server, counted up. recent_s: seconds from arrival to answer, added to.
        report: called with what happens.

    model: known once started. findings: of the replicas, at their start.
    """

    def __init__(
        self,
        plan: ReplicaPlan,
        *,
        first_index: int,
        hang_s: float,
        totals: DispatchTotals,
        recent_s: deque[float],
        report: Callable[[ServeEvent], None],
    ) -> None:
        self.plan = plan
        self.model: ServedModel
        self.findings: tuple[Finding, ...] = ()
        self.times: BatchTimes | None = None
        self.queue = RequestQueue()
        self.report = report
        self._hang_s = hang_s
        self._totals = totals
        self._recent_s = recent_s
        # Until a second batch is sent to a replica.
        self._timer: asyncio.TimerHandle | None = None
        # Something has left it.
        self._has_changed = asyncio.Event()
        self._first_index = first_index
        self.replicas: list[Replica] = []
        self._watch = asyncio.get_running_loop().create_task(self._watch_deadlines())

    @property
    def num_ready(self) -> int:
        """Replicas that can answer."""
        return sum(replica.is_ready for replica in self.replicas)

    @property
    def num_open(self) -> int:
        """Requests that are not answered."""
        return len(self.queue) + len(_open_in(_sent_by(self.replicas)))

    def wait_s(self) -> float | None:
        """How long a request that comes now is estimated to wait; None: not known."""
        ahead = self.queue.num_samples + sum(replica.num_samples for replica in self.replicas)
        return wait_s(ahead, self.num_ready, self.times)

    async def start(self) -> None:
        """Starts all replicas, and waits until they are warm.

        Raises:
            ReplicaNotStarted: the others have been ended.
        """
        try:
            ready = await self._started()
            if self.plan.num_cores is not None:
                first = self.replicas[0]
                num_more = num_copies_that_fit(first.status().pid)
                self.plan = shared_out(self.plan, ready[0].model, num_more)
                first.start = self.plan.starts[0]
                ready = await self._started()
        except BaseException:
            await self.kill()
            raise
        self.model = ready[0].model
        found = {finding.rule: finding for one in ready for finding in one.findings}
        self.findings = tuple(found.values())
        self.times = BatchTimes(self.model, self.plan.latency_s)
        self.replica_freed()

    async def measure_again(self) -> BatchesMeasured | None:
        """Corrects the size of batches: other replicas computed when it was chosen.

        None: the size is fixed, or nothing has changed.
        """
        if self.plan.latency_s is None:
            return None
        replica = next((one for one in self.replicas if one.is_ready), None)
        if replica is None:
            return not_measured(self, "no replica was ready")
        found = await replica.measured_again()
        if found is None:
            return not_measured(self, "the replica that measured has ended")
        if found.finding is not None:
            parts = ["the model failed on its example", found.finding.problem.rstrip(".")]
            return not_measured(self, ": ".join([*parts, *filter(None, [found.finding.because])]))
        if found.batch_s == self.model.batch_s:
            return None
        self.model = msgspec.structs.replace(
            self.model, batch_s=found.batch_s, max_samples=found.max_samples
        )
        self.times = BatchTimes(self.model, self.plan.latency_s)
        return BatchesMeasured(model=self.model, batch_samples=self.times.limit)

    async def _started(self) -> list[ReplicaReady]:
        """What the replicas of the plan report; those that do not run yet are started."""
        plan = self.plan
        for number, start in list(enumerate(plan.starts))[len(self.replicas) :]:
            index = self._first_index + number
            self.replicas.append(Replica(index, plan.name, plan.command, start, self))
        return await asyncio.gather(*(replica.first for replica in self.replicas))

    def add(self, pending: Pending) -> None:
        """Takes a request into the queue, and sends it at once if a replica is idle."""
        self.queue.append(pending)
        self.replica_freed()

    def abandon(self, pending: Pending) -> None:
        """Forgets a request whose client has left; one that is being computed is only ignored."""
        if not pending.future.cancelled():
            # It was answered in the same moment, and is counted.
            return
        self._totals.num_cancelled += 1
        if pending in self.queue:
            self.queue.remove([pending])
            self._has_changed.set()
        elif pending.item.is_stream:
            for replica in self.replicas:
                replica.cancel(pending.item.id)

    async def drain(self) -> None:
        """Answers what is in it, then ends the replicas."""
        while self.queue or _sent_by(self.replicas):
            self._has_changed.clear()
            await self._has_changed.wait()
        self._watch.cancel()
        await asyncio.gather(*(replica.end() for replica in self.replicas))

    async def kill(self) -> None:
        """Ends the replicas at once."""
        self._watch.cancel()
        await asyncio.gather(*(replica.kill() for replica in self.replicas))

    def fail_all(self, error: Exception) -> None:
        """Ends all requests without an answer."""
        for pending in (*_open_in(_sent_by(self.replicas)), *self.queue):
            pending.fail(error)

    # What replicas call.

    def replica_freed(self) -> None:
        """Sends waiting requests to replicas that can take them."""
        queue = self.queue
        while queue.num_waiting(is_stream=True):
            replica = _free_for_stream(self.replicas)
            if replica is None:
                break
            replica.send([queue.next_stream()], self.model.max_samples)
        while queue.num_waiting(is_stream=False):
            replica = self._free_for_batch()
            if replica is None:
                break
            batch = queue.next_batch(self.times.limit if self.times else 1)
            replica.send(batch, self.model.max_samples)

    def batch_ended(self, batch: SentBatch, done: BatchDone | None) -> None:
        """Passes answers on."""
        now_s = elapsed_s()
        seconds = now_s - (batch.began_s if batch.began_s is not None else now_s)
        if done is not None:
            if self.times is not None and not batch.is_stream:
                self.times.observe(batch.num_samples, seconds)
            self._totals.num_batches += 1
            self._totals.num_samples += batch.num_samples
            self._totals.compute_s += done.compute_s
            self._totals.decode_s += done.decode_s
        for pending, message in batch.results:
            if pending.future.done():
                continue
            if isinstance(message, Answered):
                self._totals.num_answered += 1
                self._recent_s.append(now_s - pending.accepted_s)
                pending.answer(
                    Answer(
                        rows=message.rows,
                        tensors=message.tensors,
                        model=self.model,
                        queue_s=pending.sent_s - pending.accepted_s,
                        compute_s=done.compute_s if done is not None else seconds,
                        batch_samples=batch.num_samples,
                    )
                )
            elif message.is_input:
                self._totals.num_refused += 1
                pending.fail(InputNotAccepted(message.finding))
            else:
                self._totals.num_failed += 1
                pending.fail(ModelFailed(message.finding))
        if done is not None:
            for pending in _open_in([batch]):
                self._totals.num_failed += 1
                pending.fail(RequestKilledModel("the process of the model has left it out"))
        self._has_changed.set()

    def replica_lost(
        self, computing: list[SentBatch], waiting: list[SentBatch], because: str
    ) -> tuple[int, int]:
        """Puts what a dead replica had back to the front of the queue.

        What it was computing is tried once more, each request alone: one of them may be to blame.
        """
        again: list[Pending] = []
        num_failed = 0
        for pending in _open_in(computing):
            if pending.is_suspect or pending.has_pieces:
                num_failed += 1
                pending.fail(RequestKilledModel(because))
            else:
                pending.is_alone = pending.is_suspect = True
                again.append(pending)
        again += _open_in(waiting)
        self.queue.put_back(again)
        self._totals.num_failed += num_failed
        self._totals.num_retried += len(again)
        self._totals.num_restarts += 1
        self._has_changed.set()
        self.replica_freed()
        return len(again), num_failed

    def _free_for_batch(self) -> Replica | None:
        """The replica that has the least to do, if it can take a batch."""
        ready = [replica for replica in self.replicas if replica.is_ready]
        if not ready:
            return None
        replica = min(ready, key=_load)
        if not replica.batches:
            return replica
        if len(replica.batches) >= MOST_BATCHES or self.times is None:
            return None
        current, now_s = replica.batches[0], elapsed_s()
        due_in_s = second_due_in_s(
            self.queue.num_samples,
            self.times.limit,
            now_s - (now_s if current.began_s is None else current.began_s),
            self.times.expected_s(current.num_samples),
        )
        if due_in_s <= 0:
            return replica
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(due_in_s, self._look_again)
        return None

    def _look_again(self) -> None:
        self._timer = None
        self.replica_freed()

    async def _watch_deadlines(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            now_s = elapsed_s()
            late = [pending for pending in self.queue if pending.deadline_s <= now_s]
            self.queue.remove(late)
            for replica in self.replicas:
                # A stream that has pieces is not cut off.
                computed_late = [
                    pending for pending in _open_in(replica.sent())
                    if pending.deadline_s <= now_s and not pending.has_pieces
                ]  # fmt: skip
                for pending in computed_late:
                    replica.cancel(pending.item.id)
                late += computed_late
                replica.kill_if_hung(now_s, self._hang_s)
            for pending in late:
                waited = seconds_text(now_s - pending.accepted_s)
                self._totals.num_expired += 1
                pending.fail(ServerBusy(f"no answer within {waited}", self.wait_s()))
            if late:
                self._has_changed.set()
            self.replica_freed()


def not_measured(pool: ReplicaPool, because: str) -> BatchesMeasured:
    """What is reported where the batches of a pool could not be measured again."""
    finding = Finding(
        rule="batches-not-measured",
        severity="warning",
        problem="batches could not be measured again after the swap.",
        because=f"{because}; they keep the size that was measured while the old model answered",
        fixes=(Fix(text="swap again, or start the server with a fixed size: `--batch N`"),),
    )
    limit = pool.times.limit if pool.times is not None else 1
    return BatchesMeasured(model=pool.model, batch_samples=limit, finding=finding)


def _sent_by(replicas: list[Replica]) -> list[SentBatch]:
    """Everything that replicas have not finished."""
    return [batch for replica in replicas for batch in replica.sent()]


def _free_for_stream(replicas: list[Replica]) -> Replica | None:
    """The replica with the fewest streams, if it can take one more."""
    free = [one for one in replicas if one.is_ready and len(one.streams) < MOST_STREAMS]
    return min(free, key=_stream_load, default=None)


def _load(replica: Replica) -> tuple[int, int, int]:
    return len(replica.batches), len(replica.streams), replica.num_samples


def _stream_load(replica: Replica) -> tuple[int, int, int]:
    return len(replica.streams), len(replica.batches), replica.num_samples


def _open_in(batches: list[SentBatch]) -> list[Pending]:
    """Requests of batches whose clients still wait."""
    return [
        pending
        for batch in batches
        for pending in batch.unanswered.values()
        if not pending.future.done()
    ]
