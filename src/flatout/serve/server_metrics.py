"""What a flatout server reports at /metrics, before and after a load."""

from __future__ import annotations

import http.client
from collections.abc import Collection, Sequence
from itertools import pairwise

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from flatout.schema.loadtest import ServerLoad
from flatout.serve.load_target import LoadTarget
from flatout.system import http_call

# A server under load may answer late; its load is more important than this.
_LIMIT_S = 0.5

# As serve_metrics.py names them.
_QUEUE_DEPTH = "flatout_serve_queue_requests"
_SAMPLES, _BATCHES = "flatout_serve_samples_total", "flatout_serve_batches_total"
_QUEUE_SUM = "flatout_serve_queue_duration_seconds_sum"
_QUEUE_COUNT = "flatout_serve_queue_duration_seconds_count"


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """One reading; None where the server does not have the metric. sums: over its lifetime."""

    queue_depth: float | None
    sums: dict[str, float]


def read(target: LoadTarget) -> ServerCounts | None:
    """Reads /metrics; None if the server does not give them in time."""
    try:
        reply = http_call.call(target.base + "/metrics", headers=target.headers, timeout_s=_LIMIT_S)
    except (OSError, http.client.HTTPException):
        return None
    return parsed(reply.text) if reply.status == 200 else None


def parsed(text: str) -> ServerCounts | None:
    """The counts in a text of Prometheus; labels are summed over."""
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    except ValueError:
        return None
    return ServerCounts(queue_depth=sums.get(_QUEUE_DEPTH), sums=sums)


def load_between(
    readings: Sequence[ServerCounts | None], depths: Collection[float]
) -> ServerLoad | None:
    """What happened between the first and the last reading; None without two of them."""
    known = [one for one in readings if one is not None]
    if len(known) < 2:
        return None

    def grown(name: str) -> float | None:
        counts = [one.sums[name] for one in known if name in one.sums]
        # A server that was restarted in between counts from 0 again.
        has_fallen = any(after < before for before, after in pairwise(counts))
        return None if len(counts) < len(known) or has_fallen else counts[-1] - counts[0]

    def mean(of: str, by: str) -> float | None:
        total, count = grown(of), grown(by)
        return total / count if total is not None and count else None

    batches = grown(_BATCHES)
    return ServerLoad(
        num_batches=None if batches is None else round(batches),
        mean_batch=mean(_SAMPLES, _BATCHES),
        mean_queue_s=mean(_QUEUE_SUM, _QUEUE_COUNT),
        max_queue_depth=max(depths, default=None),
    )
