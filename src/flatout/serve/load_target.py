"""What a load test sends, and where; found out from the server before anything is measured."""

from __future__ import annotations

import http.client
import mimetypes
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.units import seconds_text
from flatout.serve.answer_check import is_expected_body
from flatout.system import atomic_files, http_call, serve_files
from flatout.system.http_call import HttpReply

_PATH = "/predict"
_DURATION_S, _STEP_S = 30.0, 5.0
_SHOWN = 300
_JSON = "application/json"
# Headers that are sent anyway, so that one of the user's replaces it however it is written.
_OWN_HEADERS = {name.lower(): name for name in (
    "Authorization", "Content-Length", "Content-Type", "Host", "User-Agent",
)}  # fmt: skip


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A load test as the command line asks for it; see `flatout loadtest --help`."""

    url: str
    users: int | None = None
    rate_per_s: float | None = None
    until_latency_s: float | None = None
    duration_s: float | None = None
    warmup_s: float = 2.0
    timeout_s: float = 10.0
    input: str | None = None
    path: str | None = None
    method: str = "POST"
    headers: tuple[str, ...] = ()
    token: str | None = None
    check: str | None = None

    @property
    def is_rate(self) -> bool:
        """Whether requests are sent on a schedule."""
        return self.rate_per_s is not None

    @property
    def first_level(self) -> float:
        """Its rate or its users; the first ones, where the load rises."""
        return self.rate_per_s or float(self.users or 1)

    @property
    def measured_s(self) -> float:
        """How long each load is measured."""
        return self.duration_s or (_DURATION_S if self.until_latency_s is None else _STEP_S)


class LoadTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. expected: JSON texts; see `LoadJob`.

    base: the address, with the path below which the server is, if any. server: its name and
    version, and model, where it is a flatout server.
    """

    url: str
    base: str
    method: str
    headers: dict[str, str]
    bodies: tuple[bytes, ...]
    expected: tuple[str, ...] = ()
    server: str | None = None
    model: str | None = None

    @property
    def port(self) -> int:
        """The port of the server."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def host(self) -> str:
        """The server's host."""
        return urlsplit(self.url).hostname or ""


def find_target(request: LoadRequest) -> LoadTarget:
    """Finds out what to send, and sends it once.

    Raises:
        UsageError: loadtest-bad-url, loadtest-bad-header, loadtest-bad-input, loadtest-no-input,
            bad-token.
        RunFailed: loadtest-no-server, loadtest-needs-token, loadtest-refused,
            loadtest-wrong-answer.
    """
    base, path = _split_url(request)
    headers = _headers(request)
    expected = () if request.check is None else _texts(request.check, "--check")
    bodies = None if request.input is None else _bodies(request.input, headers)
    target = LoadTarget(
        url=base + path, base=base, method=request.method, headers=headers,
        bodies=bodies or (b"",), expected=expected,
    )  # fmt: skip
    target, document = _found_server(target, request)
    if bodies is None and request.method != "GET":
        body = _example(target, document)
        target = msgspec.structs.replace(target, bodies=(body,))
        target.headers.setdefault("Content-Type", _JSON)
    if expected and len(expected) not in (1, len(target.bodies)):
        raise _bad_input(
            "--check", f"it has {len(expected)} answers for {len(target.bodies)} inputs"
        )
    _try_once(target, request)
    return target


def _split_url(request: LoadRequest) -> tuple[str, str]:
    try:
        parts = urlsplit(request.url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and parts.username is None and parts.port != 0
    except ValueError:
        is_valid = False
    path = request.path
    if not is_valid or (path is not None and not path.startswith("/")):
        problem = f"`{request.url}` is not a web address." if not is_valid else (
            f"`--path {path}` does not begin with `/`."
        )  # fmt: skip
        raise UsageError(
            "loadtest-bad-url", problem,
            because="passwords are given with --token or --header" if "@" in request.url else None,
            fix="write it like: flatout loadtest http://127.0.0.1:8000 --path /predict",
        )  # fmt: skip
    own = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.netloc}", path or own or _PATH


def _headers(request: LoadRequest) -> dict[str, str]:
    headers = {"User-Agent": "flatout-loadtest"}
    for text in request.headers:
        name, is_header, value = text.partition(":")
        name, value = name.strip(), value.strip()
        is_safe = f"{name}{value}".isprintable() and f"{name}{value}".isascii()
        if not (is_header and name and is_safe and " " not in name):
            raise UsageError(
                "loadtest-bad-header",
                f"`--header {text}` is not a header.",
                fix="write it like: --header 'Accept: application/json'",
            )
        headers[_OWN_HEADERS.get(name.lower(), name)] = value
    if request.token is not None:
        headers["Authorization"] = f"Bearer {serve_files.secret_of(request.token, '--token')}"
    return headers


def _content(text: str, option: str) -> tuple[bytes, str] | None:
    """The content and suffix of a file; None if there is no file of that name."""
    try:
        path = Path(text).expanduser()
        if not path.is_file():
            return None
        with atomic_files.mapped_os_errors(path), atomic_files.open_file(path) as file:
            return file.read(), path.suffix.lower()
    # A JSON text may be too long for a file's name.
    except (OSError, ValueError):
        return None
    except FlatoutError as error:
        raise _bad_input(option, error.because or error.problem) from error


def _texts(text: str, option: str) -> tuple[str, ...]:
    """JSON texts: of the command line, of a file, or one a line of a file of JSON lines."""
    found = _content(text, option)
    content, suffix = (text.encode(), "") if found is None else found
    parts = content.splitlines() if suffix == ".jsonl" else [content]
    try:
        texts = [part.decode() for part in parts if part.strip()]
    except UnicodeDecodeError as error:
        raise _bad_input(option, f"it is not UTF-8: {error.reason}") from error
    for one in texts:
        try:
            msgspec.json.decode(one)
        except (msgspec.DecodeError, RecursionError) as error:
            what = "JSON, nor the name of a file" if found is None else "JSON"
            raise _bad_input(option, f"`{one[:60]}` is not {what} ({error})") from error
    if not texts:
        raise _bad_input(option, "it is empty")
    return tuple(texts)


def _bodies(text: str, headers: dict[str, str]) -> tuple[bytes, ...]:
    found = _content(text, "--input")
    kind = _JSON
    if found is None or found[1] in (".json", ".jsonl"):
        bodies = tuple(one.encode() for one in _texts(text, "--input"))
    else:
        bodies = (found[0],)
        kind = mimetypes.guess_type(f"input{found[1]}")[0] or "application/octet-stream"
    headers.setdefault("Content-Type", kind)
    return bodies


def _found_server(target: LoadTarget, request: LoadRequest) -> tuple[LoadTarget, Any]:
    """As `_with_server`; a path in the URL may be the one below which a flatout server is."""
    found = _with_server(target, request)
    parts = urlsplit(target.url)
    if found[0].server is not None or request.path is not None or parts.path == _PATH:
        return found
    if parts.query:
        return found
    base = target.url.removesuffix(_PATH)
    below = msgspec.structs.replace(target, base=base, url=base + _PATH)
    try:
        found_below = _with_server(below, request)
    except (UsageError, RunFailed):
        return found  # Another server's path, which answers only what it is for.
    return found if found_below[0].server is None else found_below


def _with_server(target: LoadTarget, request: LoadRequest) -> tuple[LoadTarget, Any]:
    """Asks who the server is, as KServe's protocol has it; of flatout, for its OpenAPI, too."""
    reply = call_server(target, "/v2", request.timeout_s)
    if reply.status in (401, 403) and request.input is None:
        raise _refused(target, reply)
    found = _json(reply) if reply.status == 200 else None
    if not isinstance(found, dict) or found.get("name") != "flatout":
        return target, None
    server = f"flatout {found.get('version', '')}".strip()
    document = _json(call_server(target, "/openapi.json", request.timeout_s))
    title = _member(document, "info", "title")
    model = title.removeprefix("flatout: ") if isinstance(title, str) else None
    return msgspec.structs.replace(target, server=server, model=model), document


def _json(reply: HttpReply) -> Any:
    """The answer's value; None if it is not JSON."""
    try:
        return msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _member(value: Any, *names: str) -> Any:
    """A member of objects in objects; None if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def call_server(target: LoadTarget, path: str, timeout_s: float) -> HttpReply:
    """GETs a path of the server.

    Raises:
        RunFailed: loadtest-no-server.
    """
    try:
        return http_call.call(target.base + path, headers=target.headers, timeout_s=timeout_s)
    except TimeoutError as error:
        raise _no_server(target, f"no answer within {seconds_text(timeout_s)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _no_server(target, str(error) or type(error).__name__) from error


def _example(target: LoadTarget, document: Any) -> bytes:
    """The body that a flatout server names as an example in its OpenAPI document."""
    path = urlsplit(target.url.removeprefix(target.base)).path
    if path == _PATH:
        media = _member(document, "paths", _PATH, "post", "requestBody", "content", _JSON)
        example = _member(media, "example")
        if example is not None:
            return msgspec.json.encode(example)
    raise UsageError(
        "loadtest-no-input",
        "there is nothing to send.",
        because=f"{target.base} is not a flatout server"
        if target.server is None
        else f"the model has no example, or {path} is not {_PATH}",
        fix="name it: --input FILE or --input JSON, and the path that takes it: --path /predict",
    )


def _try_once(target: LoadTarget, request: LoadRequest) -> None:
    """One request before all others: what never works is not worth a load test."""
    try:
        reply = http_call.call(
            target.url, method=target.method, body=target.bodies[0] or None,
            headers=target.headers, timeout_s=request.timeout_s,
        )  # fmt: skip
    except TimeoutError as error:
        raise _no_server(target, f"no answer within {seconds_text(request.timeout_s)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _no_server(target, str(error) or type(error).__name__) from error
    # A server that is busy now may answer in the test.
    if reply.status >= 300 and reply.status != 503:
        raise _refused(target, reply)
    if target.expected and reply.status < 300:
        expected = msgspec.json.decode(target.expected[0])
        if not is_expected_body(expected, reply.body):
            raise RunFailed(
                "loadtest-wrong-answer",
                "the first answer is not the expected one.",
                because=f"expected {short(target.expected[0])}; found {short(reply.text)}",
                fix="correct --check, or leave it out",
            )


def _refused(target: LoadTarget, reply: HttpReply) -> RunFailed:
    if reply.status in (401, 403):
        return RunFailed(
            "loadtest-needs-token",
            f"{target.base} does not accept the request without a valid token.",
            because=f"it answers with HTTP status {reply.status}",
            fix="give the token that the server was started with: --token TOKEN, or set"
            " FLATOUT_SERVE_TOKEN",
        )
    because = short(reply.text) or None
    fix = "correct --input"
    if reply.status in (404, 405):
        fix = "name the right path and method: --path PATH --method METHOD"
    elif reply.status < 400:
        because = f"it redirects to {short(reply.headers.get('location', 'nowhere'))}"
        fix = "use that address"
    elif reply.status >= 500:
        fix = "look at the output of the server"
    return RunFailed(
        "loadtest-refused",
        f"{target.method} {target.url} is answered with HTTP status {reply.status}.",
        because=because,
        fix=fix,
    )


def _no_server(target: LoadTarget, because: str) -> RunFailed:
    return RunFailed(
        "loadtest-no-server",
        f"no web server answers at {target.base}.",
        because=because,
        fix="start it, such as with `flatout serve RUN`, or correct the address",
    )


def _bad_input(option: str, because: str) -> UsageError:
    return UsageError(
        "loadtest-bad-input",
        f"the value of `{option}` cannot be used.",
        because=because,
        fix=f"give a JSON text or a file: {option} '[1, 2]', {option} input.json, "
        f"{option} inputs.jsonl",
    )


def short(text: str) -> str:
    """The beginning of what a server said, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + " ..."
