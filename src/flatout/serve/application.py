"""The HTTP application of `flatout serve`: routes, token, errors and metrics.

Starlette finds the route. One layer, `_Gate`, does what its middleware would: a request of a small
model takes less time than that.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flatout import __version__
from flatout.errors import FlatoutError, RunFailed, UsageError, nearest
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import TensorInput
from flatout.serve.allowed_hosts import check_host
from flatout.serve.dispatcher import Answer, Dispatcher, InferRequest
from flatout.serve.docs_page import docs_file, docs_page
from flatout.serve.event_stream import EventStream
from flatout.serve.http_errors import error_response
from flatout.serve.inputs import PredictAnswer, one_request, predict_requests, query_options
from flatout.serve.limits import ServeLimits
from flatout.serve.open_inference import EXTENSIONS, V2Call, model_metadata, v2_call, v2_response
from flatout.serve.openapi_document import openapi_document
from flatout.serve.request_body import (
    BodyMemory,
    ClientLeft,
    drain,
    header,
    read_body,
    unless_client_leaves,
)
from flatout.serve.serve_errors import ServerBusy
from flatout.serve.serve_metrics import CONTENT_TYPE, ServeMetrics
from flatout.serve.token_hash import TokenHash
from flatout.system.clock import elapsed_s

# Without a token, they describe the routes, and not the model.
_OPEN_PATHS = frozenset({"/health/live", "/v2/health/live", "/docs", "/openapi.json"})
# A larger body is read in a thread, so that others are answered meanwhile. A small file may have a
# large content.
_LARGE_BYTES = 1 << 20
_LARGE_FILE_BYTES = 64 << 10
# As lists, JSON takes up to thirty times its bytes. More threads would not read it sooner.
_MOST_LARGE = 2
_CLIENT_LEFT = 499
_MOST_SWAPS = 3
_LOG = logging.getLogger("flatout.serve")

# The requests in a body, and how their answers become a response.
_Parsed = tuple[Sequence[InferRequest], Callable[[Sequence[Answer]], Response]]
_Reader = Callable[[ServedModel], _Parsed]


class ApplicationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are accepted.

    token: that clients must send; None: no token is needed. hosts: that requests may name, as of
    `allowed_hosts`; None: any.
    """

    token: TokenHash | None = None
    hosts: frozenset[str] | None = None
    limits: ServeLimits = ServeLimits()


def application(
    dispatcher: Dispatcher, options: ApplicationOptions, metrics: ServeMetrics | None = None
) -> ASGIApp:
    """The application, to be run by an ASGI server. It has no lifespan and no websockets.

    Args:
        dispatcher: answers requests.
        options: how requests are accepted.
        metrics: of the same dispatcher, where others have a part in them.
    """
    metrics = metrics or ServeMetrics(dispatcher)
    memory = BodyMemory(options.limits)
    routes = _Routes(dispatcher, options, metrics, memory)
    # The first are the fastest to find.
    table = (
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
        ("GET", "/docs/{file}", routes.docs_file),
        ("GET", "/openapi.json", routes.openapi),
    )
    # Starlette takes what is no function for an ASGI application, and adds nothing around it.
    router = Router(
        [Route(path, _Endpoint(path, answer), methods=[method]) for method, path, answer in table],
        redirect_slashes=False,
    )
    return _Gate(router, options, metrics, memory)


class _Gate:
    """Host, token, errors, metrics and memory of all requests."""

    def __init__(
        self, router: Router, options: ApplicationOptions, metrics: ServeMetrics,
        memory: BodyMemory,
    ) -> None:  # fmt: skip
        self._router = router
        self._token = options.token
        self._hosts = options.hosts
        self._metrics = metrics
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_s = elapsed_s()
        status = 0
        # Starlette then raises an exception where there is no such route.
        scope["app"] = self

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._hosts is not None:
                check_host(scope, self._hosts)
            if self._token is not None and not _is_open(scope["path"]):
                check_token(scope, self._token)
            await self._router(scope, receive, noting)
        except ClientLeft:
            status = _CLIENT_LEFT
        except Exception as error:
            if status:
                # It is too late for another response.
                raise
            await self._refuse(error, scope, receive, noting)
        finally:
            self._memory.release(scope)
            endpoint = scope.get("endpoint")
            route = endpoint.path if isinstance(endpoint, _Endpoint) else "other"
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
        await drain(receive, self._memory.limits)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith("/docs/")


def check_token(scope: Scope, token: TokenHash) -> None:
    """Refuses a request without the token, in a time that says nothing about it.

    Raises:
        UsageError: token-not-accepted
    """
    scheme, _, given = header(scope, b"authorization").partition(" ")
    is_equal = token.matches(given.strip().encode("latin-1"))
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
        response = await self.answer(scope, receive)
        await response(scope, receive, send)


class _Routes:
    """What each route answers."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        options: ApplicationOptions,
        metrics: ServeMetrics,
        memory: BodyMemory,
    ) -> None:
        self._dispatcher = dispatcher
        self._options = options
        self._metrics = metrics
        self._memory = memory
        self._reading_large = asyncio.Semaphore(_MOST_LARGE)

    async def predict(self, scope: Scope, receive: Receive) -> ASGIApp:
        """POST /predict."""
        query = _query(scope)
        options = query_options(query)
        body = await read_body(scope, receive, self._memory)
        content_type = header(scope, b"content-type")

        def read(model: ServedModel) -> _Parsed:
            limits = self._options.limits
            requests = predict_requests(body, content_type, options, model, limits)
            return requests, functools.partial(_predictions, requests)

        if _wants_stream(scope, query):
            return await self._stream(receive, body, read)
        return await self._answer(scope, receive, body, read)

    async def infer(self, scope: Scope, receive: Receive) -> ASGIApp:
        """POST /v2/models/{model}/infer."""
        self._named_model(scope)
        body = await read_body(scope, receive, self._memory)
        json_bytes = header(scope, b"inference-header-content-length") or None

        def read(model: ServedModel) -> _Parsed:
            call = v2_call(body, json_bytes, model, self._options.limits)
            return call.requests, functools.partial(_outputs, call)

        return await self._answer(scope, receive, body, read)

    async def _answer(self, scope: Scope, receive: Receive, body: bytes, read: _Reader) -> Response:
        """The response to a body, by the model that it was read for.

        A swap in between has it read and computed again.
        """
        for _ in range(_MOST_SWAPS):
            model = self._named_model(scope)
            requests, respond = await self._read(body, read, model)
            answers = await unless_client_leaves(receive, self._submit(requests))
            if all(_is_same(answer.model, model) for answer in answers):
                for answer in answers:
                    self._metrics.observe(answer)
                return respond(answers)
        raise ServerBusy("models were swapped while it was computed", 1.0)

    async def _read(self, body: bytes, read: _Reader, model: ServedModel) -> _Parsed:
        if len(body) <= (_LARGE_FILE_BYTES if "file" in model.accepts else _LARGE_BYTES):
            return read(model)
        async with self._reading_large:
            return await asyncio.to_thread(read, model)

    async def _submit(self, requests: Sequence[InferRequest]) -> list[Answer]:
        """Half of the queue at a time: a request may have more inputs than the queue has room."""
        if len(requests) == 1:
            return [await self._dispatcher.submit(requests[0])]
        window = max(1, self._dispatcher.state().max_queue // 2)
        answers: list[Answer] = []
        for start in range(0, len(requests), window):
            part = requests[start : start + window]
            answers += await _all_of([self._dispatcher.submit(one) for one in part])
        return answers

    async def _stream(self, receive: Receive, body: bytes, read: _Reader) -> ASGIApp:
        model = self._dispatcher.model
        requests, _ = await self._read(body, read, model)
        request = one_request(requests)
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
        """The served model, if it is the one in the path, or the path names none.

        Raises:
            UsageError: no-such-model
        """
        model = self._dispatcher.model
        named = scope["path_params"]
        if (
            named.get("model", model.name) != model.name
            or named.get("version", model.version) != model.version
        ):
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
        self._named_model(scope)
        return _json({"ready": True})

    async def metrics(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /metrics."""
        return Response(await self._metrics.answer(), headers={"Content-Type": CONTENT_TYPE})

    async def docs(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /docs."""
        return docs_page()

    async def docs_file(self, scope: Scope, receive: Receive) -> ASGIApp:
        """GET /docs/{file}."""
        return docs_file(scope["path_params"]["file"])

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


def _predictions(requests: Sequence[InferRequest], answers: Sequence[Answer]) -> Response:
    model = answers[0].model
    predictions: list[Sequence[dict[str, Any]]] = []
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(request.input, TensorInput):
            predictions += [(row,) for row in answer.rows]
        else:
            predictions.append(answer.rows)
    return _json(PredictAnswer(model.name, model.version, predictions))


def _outputs(call: V2Call, answers: Sequence[Answer]) -> Response:
    content, json_length = v2_response(call, answers)
    if json_length is None:
        return Response(content, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(json_length)}
    return Response(content, headers=headers, media_type="application/octet-stream")


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _is_same(one: ServedModel, other: ServedModel) -> bool:
    return one.name == other.name and one.version == other.version


def _query(scope: Scope) -> dict[str, str]:
    text = scope["query_string"]
    return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True)) if text else {}


def _wants_stream(scope: Scope, query: dict[str, str]) -> bool:
    if "stream" in query:
        return query["stream"].lower() in ("true", "1", "")
    first, _, _ = header(scope, b"accept").partition(",")
    return first.partition(";")[0].strip().lower() == "text/event-stream"


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
