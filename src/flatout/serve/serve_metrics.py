"""What a server measures about itself, for Prometheus: base units, and a registry of its own."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from flatout.serve.dispatcher import Answer, Dispatcher, DispatchState

_DURATIONS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_PHASES = ("starting", "ready", "retiring", "waiting")
# Totals of the dispatcher: field, name, help.
_TOTALS = (
    ("num_answered", "flatout_serve_answers", "Requests that the model answered."),
    ("num_refused", "flatout_serve_inputs_refused", "Requests whose input a replica refused."),
    ("num_failed", "flatout_serve_failures", "Requests that the model could not compute."),
    ("num_expired", "flatout_serve_deadlines_missed", "Requests whose deadline passed."),
    ("num_cancelled", "flatout_serve_cancellations", "Requests whose client left."),
    ("num_busy", "flatout_serve_busy_refusals", "Requests refused because of the queue."),
    ("num_retried", "flatout_serve_retries", "Requests computed again after a replica died."),
    ("num_samples", "flatout_serve_samples", "Samples computed."),
    ("num_batches", "flatout_serve_batches", "Batches computed."),
    ("num_restarts", "flatout_serve_replica_restarts", "Replicas that were started again."),
    ("num_swaps", "flatout_serve_swaps", "Models that were swapped in."),
    (
        "num_unmeasured",
        "flatout_serve_batch_measurement_failures",
        "Swaps after which batches could not be measured again.",
    ),
    ("compute_s", "flatout_serve_compute_seconds", "Time in the model, of all replicas."),
    ("decode_s", "flatout_serve_decode_seconds", "Time in reading inputs, of all replicas."),
)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServeMetrics:
    """Counts requests, and reads the rest from the dispatcher when it is asked."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "flatout_serve_requests_total",
            "Requests by route and HTTP status; 499: the client left.",
            ("route", "status"),
            registry=self._registry,
        )
        self._durations = Histogram(
            "flatout_serve_request_duration_seconds",
            "From the request's headers to the end of the response.",
            ("route",),
            buckets=_DURATIONS_S,
            registry=self._registry,
        )
        self._queue = Histogram(
            "flatout_serve_queue_duration_seconds",
            "From a request's arrival until it went to a replica.",
            buckets=_DURATIONS_S,
            registry=self._registry,
        )
        self._compute = Histogram(
            "flatout_serve_compute_duration_seconds",
            "Time in the model of the batch that a request was in.",
            buckets=_DURATIONS_S,
            registry=self._registry,
        )
        self._batches = Histogram(
            "flatout_serve_batch_size_samples",
            "Samples in the batch that a request was in.",
            buckets=_SIZES,
            registry=self._registry,
        )
        self._registry.register(_DispatchCollector(dispatcher))
        # Looked up once: `labels` takes longer than counting.
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def count(self, route: str, status: int, duration_s: float) -> None:
        """Counts a request that has ended."""
        children = self._children.get((route, status))
        if children is None:
            children = (self._requests.labels(route, status), self._durations.labels(route))
            self._children[route, status] = children
        children[0].inc()
        children[1].observe(duration_s)

    def observe(self, answer: Answer) -> None:
        """Takes in the times of an answer."""
        self._queue.observe(answer.queue_s)
        self._compute.observe(answer.compute_s)
        self._batches.observe(answer.batch_samples)

    def text(self) -> bytes:
        """All metrics, in the text format."""
        return generate_latest(self._registry)

    async def answer(self) -> bytes:
        """What a request for them gets."""
        return self.text()


def joined(texts: Mapping[str, str]) -> bytes:
    """The metrics of several processes as one text, where `process` is a label with their name.

    Args:
        texts: what each process has, in the text format.
    """
    families: dict[str, Metric] = {}
    for name, text in texts.items():
        for family in text_string_to_metric_families(text):
            samples = [
                one._replace(labels={**one.labels, "process": name}) for one in family.samples
            ]
            family.samples = []
            families.setdefault(family.name, family).samples += samples
    registry = CollectorRegistry()
    registry.register(_Families(tuple(families.values())))
    return generate_latest(registry)


class _Families(Collector):
    """Metrics as they are."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


class _DispatchCollector(Collector):
    """Queue, replicas and totals of the dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def describe(self) -> list[Metric]:
        # The dispatcher is not asked before it has started.
        return []

    def collect(self) -> Iterator[Metric]:
        state = self._dispatcher.state()
        yield from _queue_metrics(state)
        yield from _replica_metrics(state)
        for field, name, text in _TOTALS:
            yield CounterMetricFamily(name, text, value=getattr(state.totals, field))
        if self._dispatcher.is_ready:
            yield _model_metric(self._dispatcher)


def _queue_metrics(state: DispatchState) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "flatout_serve_queue_requests", "Requests that wait for a replica.", value=state.num_queued
    )
    yield GaugeMetricFamily(
        "flatout_serve_queue_samples", "Samples of these requests.", value=state.queued_samples
    )
    yield GaugeMetricFamily(
        "flatout_serve_queue_limit_requests", "Requests that may wait.", value=state.max_queue
    )
    if state.batch_limit is not None:
        yield GaugeMetricFamily(
            "flatout_serve_batch_limit_samples", "The most samples in a batch.",
            value=state.batch_limit,
        )  # fmt: skip
    if state.wait_s is not None:
        yield GaugeMetricFamily(
            "flatout_serve_expected_wait_seconds", "Expected wait of a new request.",
            value=state.wait_s,
        )  # fmt: skip


def _replica_metrics(state: DispatchState) -> Iterator[Metric]:
    phases = GaugeMetricFamily("flatout_serve_replicas", "Replicas by phase.", labels=("phase",))
    for phase in _PHASES:
        phases.add_metric((phase,), sum(one.phase == phase for one in state.replicas))
    yield phases
    requests: Counted[tuple[str, ...]] = Counted()
    memory: Counted[tuple[str, ...]] = Counted()
    for one in state.replicas:
        # The old and the new replicas of a swap may have the same labels.
        labels: tuple[str, ...] = (str(one.index), one.version, one.device)
        requests[labels] += one.num_in_flight
        if one.memory_bytes is not None:
            memory[labels] += one.memory_bytes
    for name, text, counts in (
        ("in_flight_requests", "Requests that a replica computes.", requests),
        ("memory_bytes", "Memory that a replica's model takes.", memory),
    ):
        family = GaugeMetricFamily(
            f"flatout_serve_replica_{name}", text, labels=("replica", "version", "device")
        )
        for labels, count in counts.items():
            family.add_metric(labels, count)
        yield family


def _model_metric(dispatcher: Dispatcher) -> Metric:
    model = dispatcher.model
    family = GaugeMetricFamily(
        "flatout_serve_model_info", "The model that new requests get.",
        labels=("model", "version", "format", "device", "precision"),
    )  # fmt: skip
    family.add_metric((model.name, model.version, model.format, model.device, model.precision), 1)
    return family
