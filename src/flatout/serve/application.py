"""The HTTP application of `flatout serve`: routes, token, errors and metrics.

FastAPI has the routes and /docs. Its middleware and pydantic are left out, since a request of a
small model takes less time than they do: routes are ASGI functions behind one layer, `_Gate`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flatout import __version__
from flatout.errors import FlatoutError, RunFailed, UsageError, nearest
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import TensorInput
from flatout.serve.dispatcher import Answer, Dispatcher, InferRequest
from flatout.serve.event_stream import EventStream
from flatout.serve.http_errors import error_response
from flatout.serve.inputs import one_request, predict_requests, query_options
from flatout.serve.limits import ServeLimits
from flatout.serve.open_inference import EXTENSIONS, model_metadata, v2_call, v2_response
from flatout.serve.openapi_document import Document, openapi_document
from flatout.serve.request_body import (
    ClientLeft,
    drain,
    header,
    read_body,
    unless_client_leaves,
)
from flatout.serve.serve_errors import ServerBusy
from flatout.serve.serve_metrics import CONTENT_TYPE, ServeMetrics
from flatout.system.clock import elapsed_s

# Without a token; the last two then describe the routes, and not the model.
_OPEN_PATHS = frozenset({"/health/live", "/v2/health/live", "/docs", "/openapi.json"})
# A larger body is read in a thread, so that others are answered meanwhile.
_LARGE_BYTES = 1 << 20
_CLIENT_LEFT = 499
_MOST_SWAPS = 3
_LOG = logging.getLogger("flatout.serve")

Parsed = TypeVar("Parsed")


class ApplicationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are accepted. token: that clients must send; None: no token is needed."""

    token: str | None = None
    limits: ServeLimits = ServeLimits()


class PredictAnswer(msgspec.Struct, frozen=True):
    """The response of `POST /predict`. predictions: rows by input; NaN is null in JSON."""

    model: str
    version: str
    predictions: list[Sequence[dict[str, Any]]]


def application(dispatcher: Dispatcher, options: ApplicationOptions) -> FastAPI:
    """The application, to be run by an ASGI server."""
    metrics = ServeMetrics(dispatcher)
    app = _Application(dispatcher, options, metrics)
    routes = _Routes(dispatcher, options, metrics)
    # The first are the fastest to find.
    for method, path, answer in (
        ("POST", "/predict", routes.predict),
        ("POST", "/v2/models/{model}/infer", routes.infer),
        ("POST", "/v2/models/{model}/versions/{version}/infer", routes.infer),
        ("GET", "/health/live", routes.live),
        ("GET", "/health/ready", routes.ready),
        ("GET", "/metrics", routes.metrics),
        ("GET", "/v2", routes.server),
        ("GET", "/v2/health/live", routes.live),
        ("GET", "/v2/health/ready", routes.ready),
        ("GET", "/v2/models/{model}", routes.metadata),
        ("GET", "/v2/models/{model}/versions/{version}", routes.metadata),
        ("GET", "/v2/models/{model}/ready", routes.ready),
        ("GET", "/v2/models/{model}/versions/{version}/ready", routes.ready),
        ("GET", "/docs", routes.docs),
        ("GET", "/openapi.json", routes.openapi),
    ):
        # Starlette takes what is no function for an ASGI application, and adds nothing around it.
        app.router.add_route(path, _Endpoint(path, answer), methods=[method])  # type: ignore[arg-type]
    return app


class _Application(FastAPI):
    """FastAPI with one layer in place of its middleware, and with its own description."""

    def __init__(
        self, dispatcher: Dispatcher, options: ApplicationOptions, metrics: ServeMetrics
    ) -> None:
        super().__init__(
            title="flatout serve",
            version=__version__,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        self._dispatcher = dispatcher
        self._options = options
        self._gate = _Gate(self.router, options, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. FastAPI would look for telemetry at each."""
        if scope["type"] == "http":
            scope["app"] = self
            await self._gate(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> Document:
        """The description of the routes, for the model that is served now."""
        has_token = self._options.token is not None
        return openapi_document(self._dispatcher.model, self.version, has_token=has_token)


class _Gate:
    """Token, errors and metrics of all routes."""

    def __init__(self, routes: ASGIApp, options: ApplicationOptions, metrics: ServeMetrics) -> None:
        self._routes = routes
        self._options = options
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        began_s = elapsed_s()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._options.token is not None and scope["path"] not in _OPEN_PATHS:
                check_token(scope, self._options.token)
            await self._routes(scope, receive, noting)
        except ClientLeft:
            status = _CLIENT_LEFT
        except Exception as error:
            if status:
                # It is too late for another response.
                raise
            await self._refuse(error, scope, receive, noting)
        finally:
            route = scope.get("flatout.route", "other")
            self._metrics.count(route, status or _CLIENT_LEFT, elapsed_s() - began_s)

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        response = error_response(_as_flatout_error(error, scope))
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        is_closing = response.headers.get("connection") == "close"
        if not is_closing or response.status_code == 408:
            await response(scope, receive, send)
            return
        await send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response.raw_headers,
            }
        )
        body = bytes(response.body)
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await drain(receive, self._options.limits)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def check_token(scope: Scope, token: str) -> None:
    """Refuses a request without the token, in a time that says nothing about it.

    Raises:
        UsageError: token-not-accepted
    """
    scheme, _, given = header(scope, b"authorization").partition(" ")
    is_equal = hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
    if scheme.lower() != "bearer" or not is_equal:
        raise UsageError(
            "token-not-accepted",
            "the request has no token." if not given else "the token of the request is wrong.",
            fix="send the header `Authorization: Bearer TOKEN` with the token of `flatout serve`",
        )


def _as_flatout_error(error: Exception, scope: Scope) -> FlatoutError:
    """What a client sees of an exception; the traceback of a fault of ours goes to the log."""
    if isinstance(error, FlatoutError):
        return error
    path = str(scope["path"])[:100]
    if isinstance(error, HTTPException) and error.status_code == 405:
        return UsageError(
            "method-not-allowed",
            f"`{path}` does not accept {scope['method'][:20]}.",
            fix="see /docs for the routes and their methods",
        )
    if isinstance(error, HTTPException):
        known = ("/predict", "/v2", "/docs", "/metrics", "/health/live", "/health/ready")
        return UsageError(
            "no-such-route", f"the server has no route `{path}`.", fix=nearest(path, known)
        )
    _LOG.error("a request to %s failed", path, exc_info=error)
    return RunFailed(
        "internal-error",
        "flatout itself failed at this request.",
        because=type(error).__name__,
        fix="the log of the server has the details: please report them",
    )


@dataclass(frozen=True)
class _Endpoint:
    """A route as an ASGI application. path: with names of its parameters, as metrics show it."""

    path: str
    answer: Callable[[Scope, Receive], Awaitable[ASGIApp]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["flatout.route"] = self.path
        response = await self.answer(scope, receive)
        await response(scope, receive, send)


class _Routes:
    """What each route answers."""

    def __init__(
        self, dispatcher: Dispatcher, options: ApplicationOptions, metrics: ServeMetrics
    ) -> None:
        self._dispatcher = dispatcher
        self._options = options
        self._metrics = metrics

    async def predict(self, scope: Scope, receive: Receive) -> ASGIApp:
        """POST /predict."""
        query = _query(scope)
        options = query_options(query)
        limits = self._options.limits
        body = await read_body(scope, receive, limits)
        model = self._dispatcher.model
        content_type = header(scope, b"content-type")
        requests = await _read(
            body, lambda: predict_requests(body, content_type, options, model, limits)
        )
        if _wants_stream(scope, query):
            return await self._stream(one_request(requests), model, receive)
        answers = await unless_client_leaves(receive, self._submit(requests))
        served = answers[0].model
        predictions: list[Sequence[dict[str, Any]]] = []
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(request.input, TensorInput) and len(answer.rows) == request.num_samples:
                predictions += [(row,) for row in answer.rows]
            else:
                predictions.append(answer.rows)
        return _json(PredictAnswer(served.name, served.version, predictions))

    async def infer(self, scope: Scope, receive: Receive) -> ASGIApp:
        """POST /v2/models/{model}/infer."""
        model = self._named_model(scope)
        limits = self._options.limits
        body = await read_body(scope, receive, limits)
        json_bytes = header(scope, b"inference-header-content-length") or None
        call = await _read(body, lambda: v2_call(body, json_bytes, model, limits))
        answers = await unless_client_leaves(receive, self._submit(call.requests))
        content, json_length = v2_response(call, answers)
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(json_length)}
        return Response(content, headers=headers, media_type="application/octet-stream")

    async def _submit(self, requests: Sequence[InferRequest]) -> list[Answer]:
        """Answers to all requests, from one model: a swap in between has them computed again."""
        for _ in range(_MOST_SWAPS):
            if len(requests) == 1:
                answers = [await self._dispatcher.submit(requests[0])]
            else:
                answers = await self._submit_all(requests)
            if len({(answer.model.name, answer.model.version) for answer in answers}) == 1:
                for answer in answers:
                    self._metrics.observe(answer)
                return answers
        raise ServerBusy("models were swapped while it was computed", 1.0)

    async def _submit_all(self, requests: Sequence[InferRequest]) -> list[Answer]:
        """Half of the queue at a time: a request may have more inputs than the queue has room."""
        window = max(1, self._dispatcher.state().max_queue // 2)
        answers: list[Answer] = []
        for start in range(0, len(requests), window):
            part = requests[start : start + window]
            answers += await _all_of([self._dispatcher.submit(one) for one in part])
        return answers

    async def _stream(self, request: InferRequest, model: ServedModel, receive: Receive) -> ASGIApp:
        if not model.can_stream:
            raise UsageError(
                "model-cannot-stream",
                f"the model `{model.name}` does not generate its answers piece by piece.",
                fix="leave out `stream=true` and `Accept: text/event-stream`",
            )
        pieces = self._dispatcher.stream(request)
        # Before the response starts: what is refused has a status of its own.
        first = await unless_client_leaves(receive, _first(pieces))
        return EventStream(first, pieces, {"model": model.name, "version": model.version})

    def _named_model(self, scope: Scope) -> ServedModel:
        """The served model, if it is the one in the path.

        Raises:
            UsageError: no-such-model
        """
        model = self._dispatcher.model
        named = scope["path_params"]
        if named["model"] != model.name or named.get("version", model.version) != model.version:
            raise UsageError(
                "no-such-model",
                "the server does not have the model "
                f"`{'/'.join(str(part)[:100] for part in named.values())}`.",
                fix=f"use `{model.name}`, version `{model.version}`",
            )
        return model

    async def metadata(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /v2/models/{model}."""
        return _json(model_metadata(self._named_model(scope)))

    async def server(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /v2."""
        return _json({"name": "flatout", "version": __version__, "extensions": EXTENSIONS})

    async def live(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /health/live."""
        return _json({"live": True})

    async def ready(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /health/ready, and of a model."""
        if not self._dispatcher.is_ready:
            raise RunFailed(
                "server-not-ready",
                "no replica is ready.",
                because="they are starting, or the server is stopping",
                fix="wait, or read the log of the server",
            )
        if scope["path_params"]:
            self._named_model(scope)
        return _json({"ready": True})

    async def metrics(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /metrics."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def docs(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /docs."""
        return get_swagger_ui_html(openapi_url="openapi.json", title="flatout serve")

    async def openapi(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /openapi.json: with the model only for those who have the token."""
        token = self._options.token
        model: ServedModel | None = self._dispatcher.model
        if token is not None:
            try:
                check_token(scope, token)
            except UsageError:
                model = None
        return _json(openapi_document(model, __version__, has_token=token is not None))


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _query(scope: Scope) -> dict[str, str]:
    text = scope["query_string"]
    return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True)) if text else {}


def _wants_stream(scope: Scope, query: dict[str, str]) -> bool:
    if "stream" in query:
        return query["stream"].lower() in ("true", "1", "")
    return header(scope, b"accept").strip().lower() == "text/event-stream"


async def _read(body: bytes, read: Callable[[], Parsed]) -> Parsed:
    if len(body) > _LARGE_BYTES:
        return await asyncio.to_thread(read)
    return read()


async def _first(pieces: AsyncIterator[str]) -> str | None:
    return await anext(pieces, None)


async def _all_of(submissions: Sequence[Awaitable[Answer]]) -> list[Answer]:
    """All answers; if one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in submissions]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
