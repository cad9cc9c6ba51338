"""A replica seen from the server: its process, what it computes, and how it is started again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from flatout.errors import RunFailed
from flatout.schema.finding import Finding, finding_from
from flatout.schema.serve_control import (
    ReplicaLost,
    ReplicaPrinted,
    ReplicaRestored,
    ReplicaWarming,
    ServeEvent,
)
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import (
    Answered,
    Batch,
    BatchDone,
    Cancel,
    FromReplica,
    ItemRefused,
    Measure,
    Measured,
    Piece,
    ReplicaFailed,
    ReplicaReady,
    ReplicaStart,
    ReplicaStarting,
)
from flatout.schema.units import seconds_text
from flatout.serve.dispatcher import ReplicaPhase, ReplicaStatus
from flatout.serve.pending import Pending, SentBatch
from flatout.serve.serve_errors import ReplicaNotStarted, ServerStopping
from flatout.system.clock import elapsed_s
from flatout.system.replica_process import ReplicaProcess, start_process
from flatout.system.worker_process import ending_text

# One is computed, one waits in the pipe: the replica never waits for the server.
MOST_BATCHES = 2
# Streams take turns, between batches.
MOST_STREAMS = 32
# After starts that failed, one after another; a replica that has answered is started at once.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
# For a replica to end by itself once its stdin is closed.
_GRACE_S = 10.0
_LAST_LINES = 5


class ReplicaOwner(Protocol):
    """Who sends batches to a replica."""

    def replica_freed(self) -> None:
        """A replica can take a batch."""

    def batch_ended(self, batch: SentBatch, done: BatchDone | None) -> None:
        """Items of a batch were answered; all of them where done is given."""

    def replica_lost(
        self, computing: list[SentBatch], waiting: list[SentBatch], because: str
    ) -> tuple[int, int]:
        """What a dead replica had; how many requests are tried again, and how many fail."""

    @property
    def report(self) -> Callable[[ServeEvent], None]:
        """Called with what happens."""


class Replica:
    """One place for a replica: a process, started again each time that it dies.

    start: the first message to its process. first: its model, once it was ready for the first time.
    batches: the first one is computed, the next one waits. streams: generated side by side, by the
    number of their request.
    """

    def __init__(
        self, index: int, name: str, command: Sequence[str], start: ReplicaStart,
        owner: ReplicaOwner,
    ) -> None:  # fmt: skip
        self.index = index
        self.start = start
        self.batches: deque[SentBatch] = deque()
        self.streams: dict[int, SentBatch] = {}
        self.first: asyncio.Future[ReplicaReady] = asyncio.get_running_loop().create_future()
        self.num_restarts = 0
        self._name = name
        self._command = command
        self._owner = owner
        self._phase: ReplicaPhase = "starting"
        self._process: ReplicaProcess | None = None
        self._model: ServedModel | None = None
        self._memory_bytes: int | None = None
        self._last_sign_s = elapsed_s()
        self._measured: asyncio.Future[Measured | None] | None = None
        self._failed: ReplicaFailed | None = None
        self._killed_because: str | None = None
        self._printed = ""
        self._has_worked = False
        self._is_ending = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_ready(self) -> bool:
        """Whether it can be sent a batch."""
        is_alive = self._process is not None and self._killed_because is None
        return is_alive and self._phase == "ready"

    @property
    def num_samples(self) -> int:
        """Samples in its batches."""
        return sum(batch.num_samples for batch in self.batches)

    def sent(self) -> list[SentBatch]:
        """Everything that it has not finished."""
        return [*self.batches, *self.streams.values()]

    def status(self) -> ReplicaStatus:
        """How it is at the moment."""
        retiring = self._is_ending and self._process is not None
        return ReplicaStatus(
            index=self.index,
            phase="retiring" if retiring else self._phase,
            pid=self._process.pid if self._process else None,
            version=self._model.version if self._model else "",
            device=self._model.device if self._model else "",
            num_restarts=self.num_restarts,
            num_in_flight=sum(len(batch.unanswered) for batch in self.sent()),
            memory_bytes=self._memory_bytes,
        )

    def send(self, items: list[Pending], max_samples: int) -> None:
        """Sends it a batch. max_samples: computed together at most."""
        assert self._process is not None
        now_s = elapsed_s()
        if not self.batches and not self.streams:
            self._last_sign_s = now_s
        batch = SentBatch(items)
        if batch.is_stream:
            self.streams[batch.first] = batch
        else:
            if not self.batches:
                batch.began_s = now_s
            self.batches.append(batch)
        for pending in items:
            pending.sent_s = now_s
        sent = tuple(pending.item for pending in items)
        self._process.send(Batch(items=sent, max_samples=max_samples))

    def cancel(self, number: int) -> None:
        """The client of a streamed answer has left."""
        if self._process is not None and number in self.streams:
            self._process.send(Cancel(id=number))

    def kill_if_hung(self, now_s: float, limit_s: float) -> None:
        """Kills it where it has something to do, and nothing was heard of it for too long."""
        if self._process is None or self._killed_because is not None or not self.sent():
            return
        if now_s - self._last_sign_s > limit_s:
            self._killed_because = f"it gave no answer for {seconds_text(limit_s)} and was killed"
            self._process.kill()

    async def measured_again(self) -> Measured | None:
        """Has it measure batches again, between requests; None if it ends before."""
        assert self._process is not None
        self._measured = asyncio.get_running_loop().create_future()
        self._process.send(Measure())
        return await self._measured

    async def end(self) -> None:
        """Ends it in good order; it has nothing more to compute."""
        self._is_ending = True
        if self._process is not None and self._phase == "ready":
            self._process.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """Ends it at once."""
        self._is_ending = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self.first.done():
            self.first.set_exception(ServerStopping())

    async def _run(self) -> None:
        num_failures = 0
        while not self._is_ending:
            finding, code = await self._live()
            if self._is_ending:
                return
            if not self.first.done():
                self.first.set_exception(
                    ReplicaNotStarted(finding, exit_code=code, printed=self._printed)
                )
                return
            num_failures = 0 if self._has_worked else num_failures + 1
            pause_s = restart_pause_s(num_failures)
            self.num_restarts += 1
            self._phase = "waiting"
            retried, failed = self._give_back(finding.because or finding.problem)
            self._owner.report(
                ReplicaLost(
                    replica=self.index, finding=finding, restart_in_s=pause_s,
                    num_retried=retried, num_failed=failed, printed=self._printed,
                )
            )  # fmt: skip
            await asyncio.sleep(pause_s)

    async def _live(self) -> tuple[Finding, int]:
        """From the start of a process to its end; why it ended, and the exit code for that."""
        self._phase = "starting"
        self._failed = self._killed_because = self._memory_bytes = None
        self._has_worked = False
        self._printed = ""
        try:
            process = await start_process(self._command, self._take, self._pass_on)
        except OSError as error:
            died = RunFailed(
                "replica-died",
                "a replica could not be started.",
                because=f"{self._command[0]}: {error.strerror or error}",
                fix="choose another interpreter with --python or --env",
            )
            return finding_from(died), 1
        self._process = process
        try:
            process.send(self.start)
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        finally:
            self._process = None
            _end_wait(self._measured, None)
        self._printed = process.printed()
        if self._failed is not None:
            return self._failed.finding, self._failed.exit_code
        if process.is_stream_broken:
            self._killed_because = "what it sent is not a message of flatout's; it was killed"
        return _died(self._killed_because or f"it {ending_text(code)}", code, self._printed), 1

    def _give_back(self, because: str) -> tuple[int, int]:
        batches, streams = list(self.batches), list(self.streams.values())
        self.batches.clear()
        self.streams.clear()
        for batch in (*batches, *streams):
            if batch.results:
                self._owner.batch_ended(batch, None)
        return self._owner.replica_lost([*batches[:1], *streams], batches[1:], because)

    def _take(self, message: FromReplica) -> None:
        self._last_sign_s = elapsed_s()
        if isinstance(message, Answered | ItemRefused):
            batch = self.streams.get(message.id) or (self.batches[0] if self.batches else None)
            pending = batch.unanswered.pop(message.id, None) if batch is not None else None
            if batch is not None and pending is not None:
                # Until the end of its batch is reported, with how long it took.
                batch.results.append((pending, message))
        elif isinstance(message, BatchDone):
            self._end_batch(message)
        elif isinstance(message, Piece):
            batch = self.streams.get(message.id)
            pending = batch.unanswered.get(message.id) if batch is not None else None
            if pending is not None and pending.pieces is not None:
                pending.has_pieces = True
                pending.pieces.put_nowait(message.text)
        elif isinstance(message, ReplicaStarting):
            self._owner.report(
                ReplicaWarming(name=self._name, replica=self.index, what=message.what)
            )
        elif isinstance(message, ReplicaReady):
            self._model, self._phase = message.model, "ready"
            if not self.first.done():
                self.first.set_result(message)
            elif self._process is not None:
                self._owner.report(ReplicaRestored(replica=self.index, pid=self._process.pid))
            self._owner.replica_freed()
        elif isinstance(message, Measured):
            _end_wait(self._measured, message)
        else:
            self._failed = message

    def _pass_on(self, text: str) -> None:
        # Until it is ready, its output matters only if it dies, and is reported then.
        if self._phase == "ready" and not self._is_ending:
            self._owner.report(ReplicaPrinted(replica=self.index, text=text))

    def _end_batch(self, done: BatchDone) -> None:
        batch = self.streams.pop(done.first, None) if done.first is not None else None
        if batch is None:
            if not self.batches:
                return
            batch = self.batches.popleft()
            if self.batches:
                self.batches[0].began_s = elapsed_s()
        self._has_worked = True
        self._memory_bytes = done.memory_bytes or self._memory_bytes
        # The replica first: it computes while the answers are sent.
        self._owner.replica_freed()
        self._owner.batch_ended(batch, done)


def _end_wait(waited_for: asyncio.Future[Measured | None] | None, found: Measured | None) -> None:
    if waited_for is not None and not waited_for.done():
        waited_for.set_result(found)


def restart_pause_s(num_failures: int) -> float:
    """How long a replica is not started after as many failures, one after another."""
    if num_failures == 0:
        return 0.0
    # Not 2 to the power of any number: after a night of failures it would be no float.
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(num_failures - 1, 10))


def _died(because: str, code: int, printed: str) -> Finding:
    if code == -9 and because.startswith("it was killed"):
        because += "; if you did not kill it, the kernel did, because memory ran out"
    last = [line for line in printed.splitlines() if line.strip()][-_LAST_LINES:]
    died = RunFailed(
        "replica-died",
        "a replica exited unexpectedly.",
        because=because,
        fix="serve with fewer --replicas or a smaller --batch if memory ran out",
    )
    return msgspec.structs.replace(finding_from(died), evidence=tuple(last))
