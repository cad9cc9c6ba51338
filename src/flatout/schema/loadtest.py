"""What `flatout loadtest` measures: one file to keep, and to compare with another."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.finding import Finding
from flatout.schema.tuning import Interval

LOADTEST_VERSION = 1

# status: an answer of 300 or more. unsent: all connections were busy for as long as a client waits.
ErrorKind = Literal["status", "timeout", "connection", "wrong answer", "unsent"]
LoadVerdict = Literal["faster", "slower", "cannot tell"]


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a load test was made.

    users: clients that each wait for an answer before the next request; None with a rate.
    rate_per_s: requests sent on a schedule, whether answers come or not; None with users.
    until_latency_s: the load rose until the p99 was above it.
    model: name and version, as a flatout server reports them.
    """

    url: str
    method: str
    users: int | None = None
    rate_per_s: float | None = None
    until_latency_s: float | None = None
    duration_s: float
    warmup_s: float
    timeout_s: float
    num_inputs: int
    request_bytes: int
    is_checked: bool = False
    model: str | None = None
    server: str | None = None


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until the answer, exact: of all answered requests."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    p999_s: float
    max_s: float


class LoadError(msgspec.Struct, frozen=True, kw_only=True):
    """Requests without a good answer. status: of HTTP. example: the beginning of an answer."""

    kind: ErrorKind
    count: int
    status: int | None = None
    example: str | None = None


class LoadSecond(msgspec.Struct, frozen=True, kw_only=True):
    """One second. num_answered: good answers that came in it; num_errors: failures in it.

    Latencies are of the requests that were due in it: a second in which the server hung is slow,
    and not empty. queue_depth: as the server reports it.
    """

    at_s: float
    num_answered: int
    num_errors: int
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    queue_depth: float | None = None


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """Answers that took at most so many seconds, and more than the bucket before."""

    most_s: float
    count: int


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a flatout server reports about the time of the measurement; None: it does not say.

    mean_queue_s: before a request went to a replica. mean_batch: samples per batch.
    max_queue_depth: of those read once a second.
    """

    num_batches: int | None = None
    mean_batch: float | None = None
    mean_queue_s: float | None = None
    max_queue_depth: float | None = None


class LoadStep(msgspec.Struct, frozen=True, kw_only=True):
    """One load, for as long as it was measured.

    answers_per_s: good ones. latency: None without an answer.
    sent_bytes, received_bytes: of bodies.
    generator_cpus, server_cpus: CPU seconds per second of the generator and of the server with its
    replicas; None with the reason in unread.
    lag_s: the 99th percentile of how late the generator itself was; num_unsent of the schedule.
    is_generator_late: the generator could not keep the rate, so the latencies are partly its own.
    is_held: with a latency to hold: whether it was held.
    """

    users: int | None = None
    rate_per_s: float | None = None
    measured_s: float
    num_requests: int
    num_answered: int
    answers_per_s: float
    latency: LatencySummary | None = None
    errors: tuple[LoadError, ...] = ()
    sent_bytes: int = 0
    received_bytes: int = 0
    generator_cpus: float | None = None
    server_cpus: float | None = None
    lag_s: float | None = None
    is_generator_late: bool = False
    is_held: bool | None = None
    server: ServerLoad | None = None
    seconds: tuple[LoadSecond, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    unread: dict[str, str] = {}

    @property
    def num_errors(self) -> int:
        """Requests without a good answer."""
        return self.num_requests - self.num_answered


class LoadFile(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a load test.

    steps: one, or several with a rising load. best: the index of the one to report; None if none
    held the latency. finding: what ended it, or made it worthless.
    """

    loadtest_version: int = LOADTEST_VERSION
    flatout: str
    at: str
    machine: str
    settings: LoadSettings
    steps: tuple[LoadStep, ...]
    best: int | None = None
    is_interrupted: bool = False
    warnings: tuple[str, ...] = ()
    finding: Finding | None = None

    @property
    def reported(self) -> LoadStep | None:
        """The step that matters: the best one, else the last."""
        if self.best is not None:
            return self.steps[self.best]
        return self.steps[-1] if self.steps else None


class LoadJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the generator's process is to send.

    url: with its path. bodies: sent in turn. expected: their answers as JSON texts, as many as
    bodies or one for all; empty: not checked. connections: at most, of a schedule.
    records: the file for one record per request, see `LoadRecord`.
    """

    url: str
    method: str
    headers: dict[str, str]
    bodies: tuple[bytes, ...]
    expected: tuple[str, ...] = ()
    users: int
    rate_per_s: float | None = None
    warmup_s: float
    duration_s: float
    timeout_s: float
    records: str


class LoadBegan(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """The warm-up is over."""


class LoadTick(msgspec.Struct, frozen=True, kw_only=True, tag="tick"):
    """A second of the measurement, for the screen: what was finished in it."""

    at_s: float
    num_answered: int
    num_errors: int
    p50_s: float | None = None
    p99_s: float | None = None


class LoadEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """All requests were answered or given up. measured_s: until the end of the schedule.

    cpu_s: of the generator's process, in wall_s. examples: an answer by "kind status".
    """

    measured_s: float
    cpu_s: float
    wall_s: float
    examples: dict[str, str] = {}


FromGenerator = LoadBegan | LoadTick | LoadEnded


class LoadChange(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity of two load tests.

    ratio: above 1 is better, with its 95 % interval; None where there are too few seconds.
    """

    name: str
    unit: Literal["answers/s", "requests/s", "users", "s"]
    first: float
    second: float
    ratio: Interval | None = None
    verdict: LoadVerdict = "cannot tell"
    why: str | None = None


class LoadComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The second load test against the first. differing: settings, with both values."""

    first: str
    second: str
    changes: tuple[LoadChange, ...]
    differing: tuple[tuple[str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()
