"""What a soak of `flatout serve` did, interval by interval: which side waits for which.

A backlog in the generator (`waiting`) with a short queue in the server means that its connections
are all in use. Then the size of batches and the CPUs of server, replicas and generator tell what
takes the time.
"""

from __future__ import annotations

import http.client
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from flatout.serve.load_records import quantile
from flatout.serve.server_metrics import parsed
from flatout.system import http_call

INTERVAL_S = 10.0
_LIMIT_S = 5.0
_QUEUE = "flatout_serve_queue_requests"
_IN_FLIGHT = "flatout_serve_replica_in_flight_requests"
_SAMPLES, _BATCHES = "flatout_serve_samples_total", "flatout_serve_batches_total"
_QUEUE_SUM = "flatout_serve_queue_duration_seconds_sum"
_QUEUE_COUNT = "flatout_serve_queue_duration_seconds_count"
_COMPUTE = "flatout_serve_compute_seconds_total"


@dataclass(frozen=True)
class Reading:
    """The server at a moment. metrics: its /metrics, summed over labels; empty without an answer.

    cpu_s: CPU seconds so far, by `server`, `generator`, and `replicas` by their process ids.
    """

    at_s: float
    metrics: Mapping[str, float]
    cpu_s: Mapping[str, float]


def read_metrics(port: int) -> Mapping[str, float]:
    """A server's /metrics, summed over labels; empty if it does not answer."""
    try:
        reply = http_call.call(f"http://127.0.0.1:{port}/metrics", timeout_s=_LIMIT_S)
    except (OSError, http.client.HTTPException):
        return {}
    counts = parsed(reply.text) if reply.status == 200 else None
    return counts.sums if counts is not None else {}


def read_server(
    port: int, at_s: float, server: psutil.Process, replicas: Iterable[psutil.Process],
    generator: int,
) -> Reading:  # fmt: skip
    """Reads metrics and CPU times. generator: its process id."""
    metrics = read_metrics(port)
    cpu_s = {}
    named = [("server", server), *((f"replica {one.pid}", one) for one in replicas)]
    try:
        named.append(("generator", psutil.Process(generator)))
    except psutil.Error:
        pass
    for name, process in named:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        cpu_s[name] = times.user + times.system
    return Reading(at_s, metrics, cpu_s)


def timeline(
    records: Iterable[tuple[float, float, int, int, int]],
    readings: Sequence[Reading],
    *,
    rate_per_s: float,
    duration_s: float,
) -> list[dict[str, Any]]:
    """A row for each interval: answers that came in it, and their latency since they were due.

    waiting: requests due and without an answer at its end.

    Args:
        records: as `http_load.RECORD` has them.
        readings: one at the beginning of each interval.
        rate_per_s, duration_s: of the schedule.
    """
    latencies_s: dict[int, list[float]] = defaultdict(list)
    began_s: float | None = None
    for due_s, latency_s, status, _, _ in records:
        # Of the first answer: the generator has begun a moment after it was started.
        began_s = due_s if began_s is None else began_s
        if status:
            latencies_s[int((due_s - began_s + latency_s) // INTERVAL_S)].append(latency_s)
    between = {round(row.pop("at_s") / INTERVAL_S): row for row in _between(readings)}
    rows = []
    num_answered = 0
    for number in range(max(latencies_s, default=-1) + 1):
        ordered = sorted(latencies_s[number])
        num_answered += len(ordered)
        end_s = (number + 1) * INTERVAL_S
        rows.append({
            "at_s": number * INTERVAL_S,
            "answered_per_s": len(ordered) / INTERVAL_S,
            "p50_s": quantile(ordered, 0.5) if ordered else None,
            "p99_s": quantile(ordered, 0.99) if ordered else None,
            "waiting": round(rate_per_s * min(end_s, duration_s)) - num_answered,
            **between.get(number, {}),
        })  # fmt: skip
    return rows


def _between(readings: Sequence[Reading]) -> Iterator[dict[str, Any]]:
    """What the server did between each reading and the next."""
    for first, last in zip(readings, readings[1:], strict=False):
        length_s = last.at_s - first.at_s
        cpus: dict[str, float] = defaultdict(float)
        for name, seconds in last.cpu_s.items():
            cpus[name.partition(" ")[0]] += (seconds - first.cpu_s.get(name, 0.0)) / length_s
        yield {
            "at_s": first.at_s,
            "queue": last.metrics.get(_QUEUE),
            "in_replicas": last.metrics.get(_IN_FLIGHT),
            "batch_samples": _ratio(first, last, _SAMPLES, _BATCHES),
            "queue_s": _ratio(first, last, _QUEUE_SUM, _QUEUE_COUNT),
            "sample_s": _ratio(first, last, _COMPUTE, _SAMPLES),
            "cpus": dict(cpus),
        }


def _ratio(first: Reading, last: Reading, of: str, by: str) -> float | None:
    try:
        count = last.metrics[by] - first.metrics[by]
        return (last.metrics[of] - first.metrics[of]) / count if count else None
    except KeyError:
        return None
