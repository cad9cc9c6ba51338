"""Errors as HTTP responses: a status for each id, and one form of JSON for all."""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from flatout.errors import FlatoutError
from flatout.schema.addresses import masked
from flatout.schema.finding import page_command

# All others are 500. Those of the dispatcher: `serve_errors.py`.
_STATUSES = {
    "body-not-readable": 400,
    "body-too-large": 413,
    "body-too-slow": 408,
    "content-type-not-supported": 415,
    "file-damaged": 422,
    "file-too-large": 413,
    "headers-too-large": 431,
    "headers-too-slow": 408,
    "host-not-allowed": 421,
    "input-kind-not-accepted": 422,
    "input-not-accepted": 422,
    "input-not-finite": 422,
    "input-shape-wrong": 422,
    "input-type-wrong": 422,
    "json-too-deep": 400,
    "method-not-allowed": 405,
    "model-cannot-stream": 400,
    "no-such-model": 404,
    "no-such-route": 404,
    "protocol-part-not-supported": 501,
    "request-invalid": 400,
    "server-busy": 503,
    "server-is-stopping": 503,
    "server-not-ready": 503,
    "tensor-data-incomplete": 400,
    "tensor-too-large": 413,
    "token-not-accepted": 401,
    "too-many-inputs": 413,
    "unknown-output": 400,
}
# Where reading the rest of the body is not worth it.
_CLOSING = ("body-too-large", "body-too-slow", "host-not-allowed", "token-not-accepted")
_RETRY_S = 1.0


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON of an error. Clients of the v2 protocol show `error`.

    see: the command that shows the page of `rule`.
    """

    error: str
    fix: str
    see: str
    rule: str
    because: str | None = None


def http_status(error: FlatoutError) -> int:
    """The status code of an error."""
    return _STATUSES.get(error.rule, 500)


def error_body(error: FlatoutError) -> bytes:
    """An error as JSON, without passwords in addresses."""
    return msgspec.json.encode(
        ErrorBody(
            error=masked(error.problem),
            because=error.because and masked(error.because),
            fix=masked(error.fix),
            see=page_command(error.rule),
            rule=error.rule,
        )
    )


def error_response(error: FlatoutError) -> Response:
    """An error as a response."""
    status = http_status(error)
    headers = {}
    if status == 503:
        retry_s = getattr(error, "retry_after_s", _RETRY_S)
        headers["Retry-After"] = str(max(1, math.ceil(retry_s)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.rule in _CLOSING:
        headers["Connection"] = "close"
    return Response(error_body(error), status, headers, "application/json")


def error_statuses() -> dict[int, list[str]]:
    """Ids by status, for the description of the routes."""
    ids: dict[int, list[str]] = {500: ["model-failed", "request-killed-the-model"]}
    for rule, status in _STATUSES.items():
        ids.setdefault(status, []).append(rule)
    return ids
