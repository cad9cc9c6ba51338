"""The running servers of this user: what each reports about itself, and an input tried on one."""

from __future__ import annotations

import functools
import http.client
import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import Finding, finding_from, internal_error
from flatout.schema.serve_control import ControlFile
from flatout.serve.control import choose_server, server_gone, server_not_understood
from flatout.serve.http_errors import ErrorBody
from flatout.serve.inputs import PredictAnswer
from flatout.serve.open_inference import V2ModelMetadata
from flatout.system import clock, http_call, process_env, serve_files
from flatout.system.host_system import Unread
from flatout.system.http_call import HttpReply
from flatout.system.timeout_threads import run_together

# For a question to a server, for all questions to all servers, and for an input that is tried.
_LIMIT_S, _ALL_LIMIT_S, _ANSWER_LIMIT_S = 2.0, 3.0, 60.0
_TOP = 3
_TOKEN_NAME = "FLATOUT_SERVE_TOKEN"
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# As serve_metrics.py names them.
_PREFIX = "flatout_serve_"
_LOG = logging.getLogger("flatout.serve")

TriedKind = Literal["file", "text", "value"]
_CONTENT_TYPES: dict[TriedKind, str] = {
    "file": "application/octet-stream", "text": "text/plain", "value": "application/json",
}  # fmt: skip


class _Media(msgspec.Struct, frozen=True):
    example: dict[str, Any] | None = None


class _Body(msgspec.Struct, frozen=True):
    content: dict[str, _Media]


class _Operation(msgspec.Struct, frozen=True, rename="camel"):
    request_body: _Body


class _Predict(msgspec.Struct, frozen=True):
    post: _Operation


class _Paths(msgspec.Struct, frozen=True):
    predict: _Predict = msgspec.field(name="/predict")


class _Document(msgspec.Struct, frozen=True):
    """What is used of a server's /openapi.json (`openapi_document.py`)."""

    paths: _Paths


class BatchCount(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that were in batches of up to so many samples; None: of any size above."""

    most_samples: int | None
    num_requests: int


class ServerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has measured since it started; None where it does not report it.

    p50_s, p99_s: from a request's arrival to the end of its answer; None also without any, or
    above the largest bound of the histogram.
    """

    model: dict[str, str] = {}
    num_ready: int | None = None
    num_queued: int | None = None
    expected_wait_s: float | None = None
    num_answered: int | None = None
    num_failed: int | None = None
    num_busy: int | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    mean_queue_s: float | None = None
    mean_batch_samples: float | None = None
    batches: tuple[BatchCount, ...] = ()


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A running server. problem: why the rest is unknown.

    accepts: inputs that can be tried. example: a JSON value as an input. picture: height and width
    of the pictures that the model takes, if it takes files of gray ones.
    """

    name: str
    port: int
    url: str
    problem: Finding | None = None
    figures: ServerFigures | None = None
    accepts: tuple[TriedKind, ...] = ()
    example: object = None
    picture: tuple[int, int] | None = None


class TriedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input for a server. content: of a file, or a text in UTF-8: of JSON, if it is a value."""

    port: int
    kind: TriedKind
    content: bytes


class TriedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an input that was tried: a row for each sample in it."""

    port: int
    model: str
    rows: list[dict[str, Any]]
    duration_s: float


def server_statuses() -> list[ServerStatus]:
    """The running servers of this user, asked at once; of one that hangs, that it does."""
    controls = {str(control.port): control for control in serve_files.running_servers()}
    found = run_together(
        {port: functools.partial(_status, control) for port, control in controls.items()},
        _ALL_LIMIT_S,
    )
    return [
        _unknown(controls[port], finding_from(server_gone(controls[port], status.reason)))
        if isinstance(status, Unread)
        else status
        for port, status in found.items()
    ]


def try_input(tried: TriedInput) -> TriedAnswer:
    """Sends an input to one of this user's servers.

    Raises:
        UsageError: no-server, body-not-readable, and what the server refuses.
        RunFailed: server-gone, server-not-understood, and what the server cannot do.
    """
    server = choose_server(serve_files.running_servers(), tried.port)
    content = tried.content if tried.kind != "value" else _json_input(tried.content)
    began_s = clock.elapsed_s()
    reply = _called(
        server, f"/predict?top={_TOP}", content=content, content_type=_CONTENT_TYPES[tried.kind]
    )
    duration_s = clock.elapsed_s() - began_s
    answer = _decoded(server, reply, PredictAnswer)
    rows = [row for prediction in answer.predictions for row in prediction]
    return TriedAnswer(port=server.port, model=answer.model, rows=rows, duration_s=duration_s)


def figures_in(text: str) -> ServerFigures:
    """The figures in the text of a server's /metrics.

    Raises:
        ValueError: it is not in Prometheus's format.
    """
    values: dict[str, float] = defaultdict(float)
    latency: dict[float, float] = defaultdict(float)
    batches: dict[float, float] = defaultdict(float)
    model: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, labels = sample.name.removeprefix(_PREFIX), sample.labels
            if name == "model_info":
                model = dict(labels)
            elif name == "replicas":
                values[f"replicas_{labels['phase']}"] += sample.value
            elif name == "request_duration_seconds_bucket" and _is_prediction(labels["route"]):
                latency[float(labels["le"])] += sample.value
            elif name == "batch_size_samples_bucket":
                batches[float(labels["le"])] += sample.value
            else:
                values[name] += sample.value
    return ServerFigures(
        model=model,
        num_ready=_whole(values, "replicas_ready"),
        num_queued=_whole(values, "queue_requests"),
        expected_wait_s=values.get("expected_wait_seconds"),
        num_answered=_whole(values, "answers_total"),
        num_failed=_whole(values, "failures_total"),
        num_busy=_whole(values, "busy_refusals_total"),
        p50_s=quantile(latency, 0.5),
        p99_s=quantile(latency, 0.99),
        mean_queue_s=_mean(values, "queue_duration_seconds_sum", "queue_duration_seconds_count"),
        mean_batch_samples=_mean(values, "samples_total", "batches_total"),
        batches=_batch_counts(batches),
    )


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of a histogram, interpolated within its bucket.

    Args:
        buckets: how many values are at most each bound.
        share: 0.5 for the median.

    Source: Prometheus, `histogram_quantile`.
    """
    rank = share * max(buckets.values(), default=0.0)
    low, below = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= rank > 0:
            if math.isinf(bound):
                return None
            return low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return None


def _is_prediction(route: str) -> bool:
    return route == "/predict" or route.endswith("/infer")


def _whole(values: Mapping[str, float], name: str) -> int | None:
    return round(values[name]) if name in values else None


def _mean(values: Mapping[str, float], total: str, count: str) -> float | None:
    return values[total] / values[count] if values.get(count) and total in values else None


def _batch_counts(buckets: Mapping[float, float]) -> tuple[BatchCount, ...]:
    counts, below = [], 0.0
    for bound, count in sorted(buckets.items()):
        if count > below:
            most = None if math.isinf(bound) else round(bound)
            counts.append(BatchCount(most_samples=most, num_requests=round(count - below)))
        below = count
    return tuple(counts)


def _unknown(control: ControlFile, problem: Finding) -> ServerStatus:
    return ServerStatus(
        name=control.name, port=control.port, url=_url(control), problem=problem
    )  # fmt: skip


def _status(control: ControlFile) -> ServerStatus:
    try:
        return _asked(control)
    except FlatoutError as error:
        return _unknown(control, finding_from(error))
    # The other servers are shown all the same, and this one is not called gone.
    except Exception as error:  # noqa: BLE001
        _LOG.exception("the server on port %d could not be asked", control.port)
        return _unknown(control, internal_error(error))


def _asked(control: ControlFile) -> ServerStatus:
    """What a server reports.

    Raises:
        UsageError: token-not-accepted; RunFailed: server-gone, server-not-understood.
    """
    figures = _figures(control, _checked(control, _called(control, "/metrics")).text)
    document = _decoded(control, _called(control, "/openapi.json"), _Document)
    name = figures.model.get("model")
    path = f"/v2/models/{quote(name or '', safe='')}"
    model = _decoded(control, _called(control, path), V2ModelMetadata) if name else None
    content = document.paths.predict.post.request_body.content
    accepts = tuple(kind for kind, media in _CONTENT_TYPES.items() if media in content)
    example = content.get("application/json", _Media()).example or {}
    is_with_files = "file" in accepts and model is not None
    return ServerStatus(
        name=control.name, port=control.port, url=_url(control),
        figures=figures, accepts=accepts, example=example.get("input"),
        picture=_picture(model) if is_with_files and model is not None else None,
    )  # fmt: skip


def _figures(control: ControlFile, text: str) -> ServerFigures:
    try:
        return figures_in(text)
    # It is not in Prometheus's format; or a label is missing.
    except (ValueError, LookupError) as error:
        raise server_not_understood(control, f"its /metrics: {error}") from error


def _picture(model: V2ModelMetadata) -> tuple[int, int] | None:
    """Height and width, where a sample is one gray picture: [-1, 1, 28, 28]."""
    shapes = [tensor.shape for tensor in model.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 1 or min(shapes[0][2:]) < 1:
        return None
    return shapes[0][2], shapes[0][3]


def _json_input(text: bytes) -> bytes:
    try:
        # Checked, and not made into objects, which take many times the memory.
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(
            "body-not-readable", "the input is not JSON.", because=str(error),
            fix="write numbers in lists, such as [[0, 1], [2, 3]]; a text in quotation marks",
        ) from error  # fmt: skip
    return b'{"input":' + text + b"}"


def _url(control: ControlFile) -> str:
    host = _EVERY_ADDRESS.get(control.host, control.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{control.port}"


def _called(
    control: ControlFile, path: str, *, content: bytes | None = None, content_type: str = ""
) -> HttpReply:
    headers = {"User-Agent": "flatout-web"}
    token = process_env.shell_variables().get(_TOKEN_NAME)
    if token:
        headers["Authorization"] = f"Bearer {serve_files.secret_of(token, _TOKEN_NAME)}"
    if content is None:
        method, limit_s = "GET", _LIMIT_S
    else:
        method, limit_s = "POST", _ANSWER_LIMIT_S
        headers["Content-Type"] = content_type
    try:
        return http_call.call(
            _url(control) + path, method=method, body=content, headers=headers, timeout_s=limit_s
        )
    except OSError as error:
        raise server_gone(control, str(error) or type(error).__name__) from error
    except http.client.HTTPException as error:
        raise server_not_understood(control, f"not HTTP: {error!r}") from error


def _checked(control: ControlFile, reply: HttpReply) -> HttpReply:
    """A reply, if it is an answer.

    Raises:
        UsageError, RunFailed: what the server says.
    """
    if reply.status == 200:
        return reply
    if reply.status == 401:
        raise UsageError(
            "token-not-accepted",
            f"the server on port {control.port} needs its token.",
            fix=f"set {_TOKEN_NAME} to it, and start flatout web again",
        )
    try:
        said = msgspec.json.decode(reply.body, type=ErrorBody)
    except (msgspec.DecodeError, ValueError) as error:
        raise server_not_understood(control, f"HTTP status {reply.status}") from error
    kind = UsageError if reply.status < 500 else RunFailed
    raise kind(said.rule, said.error, because=said.because, fix=said.fix)


def _decoded(control: ControlFile, reply: HttpReply, kind: Any) -> Any:
    try:
        return msgspec.json.decode(_checked(control, reply).body, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise server_not_understood(control, str(error)) from error
