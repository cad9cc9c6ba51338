"""A generator of HTTP requests that takes little of the CPUs, for benchmarks and campaigns.

    python http_load.py < job.json

Connections are asyncio protocols that send bytes made beforehand; answers are cut by their
Content-Length. Run in a process of its own; prints a `LoadResult` as JSON.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import math
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from flatout.serve.answer_check import is_expected

# Wall clock when it was due, seconds until the answer, status (0: none), number of the input, and
# which of its known answers it got, as bits; of a refusal, whether it has a Retry-After.
RECORD = struct.Struct("<ddHIB")
TIMED_OUT, LOST = 0, 1
_SWEEP_S = 0.25
# uvloop takes less than half a millisecond for no time at all: the schedule would take a whole CPU,
# which the server on the same machine then lacks.
_SHORTEST_SLEEP_S = 0.001


class Job(msgspec.Struct, kw_only=True):
    """What to send. expected: known answers of each body, as rows of `predictions`.

    rate_per_s: None: each of `users` sends when its answer has come; else users are the most
    connections. records: the file for one RECORD per request.
    """

    host: str = "127.0.0.1"
    port: int
    path: str
    bodies: list[str]
    headers: dict[str, str] = {}
    expected: list[list[dict[str, Any]]] = []
    users: int = 1
    rate_per_s: float | None = None
    warmup_s: float = 1.0
    duration_s: float = 3.0
    timeout_s: float = 10.0
    records: str | None = None


class LoadResult(msgspec.Struct, kw_only=True):
    """What came of it; latencies of good answers.

    held_share: of all requests, those with a good answer within 50 ms.
    num_unsent: due by the schedule, while all connections waited until long after its end.
    cpus: CPU seconds per second of the generator.
    """

    num_requests: int
    num_answered: int
    answers_per_s: float
    p50_s: float | None
    p99_s: float | None
    held_share: float
    statuses: dict[str, int]
    num_timed_out: int
    num_lost: int
    num_wrong: int
    num_unsent: int
    cpus: float


LIMIT_S = 0.05


class _Client(asyncio.Protocol):
    """One connection; due_s: of the request that it waits for, else None.

    sent_s: when it was sent. A client's patience begins then; the latency, when it was due.
    """

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.due_s: float | None = None
        self.sent_s = 0.0
        self.place = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._load.is_free(self)

    def send(self, due_s: float, place: int) -> None:
        """Sends a request."""
        assert self._transport is not None
        self.due_s, self.place, self.sent_s = due_s, place, time.perf_counter()
        self._transport.write(self._load.requests[place])

    def abort(self) -> None:
        """Gives the connection up."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        place = head.find(b"content-length:")
        if place < 0:
            is_over = b"chunked" in head and self._buffer.endswith(b"0\r\n\r\n")
            length = len(self._buffer) - end - 4 if is_over else sys.maxsize
        else:
            length = int(head[place + 15 :].split(b"\r\n", 1)[0])
        if len(self._buffer) - end - 4 < length:
            return
        body, self._buffer = self._buffer[end + 4 : end + 4 + length], b""
        due_s, self.due_s = self.due_s, None
        if due_s is not None:
            self._load.answered(due_s, self.place, head, body)
        if b"connection: close" in head:
            self.abort()
        else:
            self._load.is_free(self)

    def connection_lost(self, error: Exception | None) -> None:
        due_s, self.due_s = self.due_s, None
        self._load.is_gone(self)
        if due_s is not None:
            self._load.unanswered(self, due_s)


class _Load:
    """A job under way. Times are by `time.perf_counter`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.requests = [_request(job, body) for body in job.bodies]
        self._places = itertools.cycle(range(len(self.requests)))
        self._free: list[_Client] = []
        self._waiting: collections.deque[float] = collections.deque()
        self._clients: set[_Client] = set()
        self._wall_s = time.time() - time.perf_counter()
        self.began_s = time.perf_counter() + job.warmup_s
        self.end_s = self.began_s + job.duration_s
        self.latencies: list[float] = []
        self.statuses: collections.Counter[int] = collections.Counter()
        self.num_timed_out = self.num_lost = self.num_wrong = self.num_held = 0
        self._records = open(job.records, "wb") if job.records else None
        self.last_s = self.began_s

    @property
    def num_unsent(self) -> int:
        """Requests that were due and wait for a connection."""
        return len(self._waiting)

    def is_free(self, client: _Client) -> None:
        """A connection can send."""
        self._clients.add(client)
        now = time.perf_counter()
        if self._job.rate_per_s is None:
            if now < self.end_s:
                client.send(now, next(self._places))
        elif self._waiting:
            client.send(self._waiting.popleft(), next(self._places))
        else:
            self._free.append(client)

    def is_gone(self, client: _Client) -> None:
        """A connection was closed; another one takes its place."""
        self._clients.discard(client)
        if client in self._free:
            self._free.remove(client)
        if time.perf_counter() < self.end_s:
            # Not at once: a server that refuses connections would be asked in a loop.
            loop = asyncio.get_running_loop()
            loop.call_later(0.05, lambda: loop.create_task(self.connect()))

    async def connect(self) -> None:
        """Opens a connection."""
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: _Client(self), self._job.host, self._job.port
            )
        except OSError:
            if time.perf_counter() < self.end_s:
                await asyncio.sleep(0.1)
                await self.connect()

    def answered(self, due_s: float, place: int, head: bytes, body: bytes) -> None:
        """An answer has come. head: in lower case."""
        now = time.perf_counter()
        latency_s, status = now - due_s, int(head[9:12])
        matched = int(b"retry-after:" in head)
        if due_s < self.began_s:
            return
        self.last_s = now
        self.statuses[status] += 1
        if status == 200:
            self.latencies.append(latency_s)
            self.num_held += latency_s <= LIMIT_S
            matched = 0
            if self._job.expected:
                matched = _matched(body, self._job.expected[place])
                self.num_wrong += not matched
        self._write(due_s, latency_s, status, place, matched)

    def unanswered(self, client: _Client, due_s: float) -> None:
        """A connection was closed while its request had no answer."""
        now = time.perf_counter()
        latency_s, is_late = now - due_s, now - client.sent_s >= self._job.timeout_s
        if due_s < self.began_s:
            return
        self.num_timed_out += is_late
        self.num_lost += not is_late
        self._write(due_s, latency_s, 0, client.place, TIMED_OUT if is_late else LOST)

    def _write(self, due_s: float, latency_s: float, status: int, place: int, what: int) -> None:
        if self._records is not None:
            self._records.write(RECORD.pack(due_s + self._wall_s, latency_s, status, place, what))

    async def run(self) -> float:
        """Sends everything; gives the CPU seconds per second."""
        await asyncio.gather(*(self.connect() for _ in range(self._job.users)))
        sweeping = asyncio.create_task(self._sweep())
        if self._job.rate_per_s is not None:
            schedule = asyncio.create_task(self._keep_schedule(self._job.rate_per_s))
        await asyncio.sleep(max(0.0, self.began_s - time.perf_counter()))
        cpu_s, at_s = time.process_time(), time.perf_counter()
        await asyncio.sleep(max(0.0, self.end_s - time.perf_counter()))
        cpus = (time.process_time() - cpu_s) / (time.perf_counter() - at_s)
        if self._job.rate_per_s is not None:
            await schedule
        while self._waiting or any(client.due_s is not None for client in self._clients):
            await asyncio.sleep(0.01)
            if time.perf_counter() > self.end_s + 2 * self._job.timeout_s:
                break
        sweeping.cancel()
        if self._records is not None:
            self._records.close()
            # What is answered still later counts neither way.
            self._records = None
        return cpus

    async def _keep_schedule(self, rate_per_s: float) -> None:
        start_s, number = time.perf_counter(), 0
        while (due_s := start_s + number / rate_per_s) < self.end_s:
            left_s = due_s - time.perf_counter()
            if left_s > 0:
                await asyncio.sleep(max(left_s, _SHORTEST_SLEEP_S))
                continue
            number += 1
            if self._free:
                self._free.pop().send(due_s, next(self._places))
            else:
                self._waiting.append(due_s)
            if number % 32 == 0:
                await asyncio.sleep(0)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            limit_s = time.perf_counter() - self._job.timeout_s
            for client in list(self._clients):
                if client.due_s is not None and client.sent_s < limit_s:
                    client.abort()


def _request(job: Job, body: str) -> bytes:
    content = body.encode()
    headers = {
        "Host": f"{job.host}:{job.port}", "Content-Type": "application/json", **job.headers,
        "Content-Length": str(len(content)),
    }  # fmt: skip
    lines = [f"POST {job.path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + content


def _matched(body: bytes, known: Sequence[dict[str, Any]]) -> int:
    """Which of the known answers it is, as bits."""
    try:
        found = first_row(body)
    except (msgspec.DecodeError, LookupError, TypeError):
        return 0
    return sum(1 << place for place, one in enumerate(known) if is_expected(one, found))


def first_row(body: bytes) -> Any:
    """The row of the first sample. flatout answers a list of rows for each input; BentoML the rows
    alone.
    """
    document = msgspec.json.decode(body)
    found = (document["predictions"] if isinstance(document, dict) else document)[0]
    return found[0] if isinstance(found, list) else found


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


async def run(job: Job) -> LoadResult:
    """Carries out a job."""
    load = _Load(job)
    cpus = await load.run()
    ordered = sorted(load.latencies)
    num_requests = sum(load.statuses.values()) + load.num_timed_out + load.num_lost
    span_s = max(load.last_s - load.began_s, job.duration_s)
    return LoadResult(
        num_requests=num_requests,
        num_answered=len(ordered),
        answers_per_s=len(ordered) / span_s,
        p50_s=_quantile(ordered, 0.5),
        p99_s=_quantile(ordered, 0.99),
        held_share=load.num_held / num_requests if num_requests else 0.0,
        statuses={str(status): count for status, count in load.statuses.items()},
        num_timed_out=load.num_timed_out,
        num_lost=load.num_lost,
        num_wrong=load.num_wrong,
        num_unsent=load.num_unsent,
        cpus=cpus,
    )


def main() -> None:
    """Reads a job, prints its result."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    result = asyncio.run(run(job))
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
