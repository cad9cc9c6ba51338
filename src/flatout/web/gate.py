"""What is asked of every request before a page sees it, and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass, field
from secrets import token_urlsafe
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flatout.schema.addresses import host_in
from flatout.schema.web_request import TOKEN_PARAMETER

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With `no-referrer`, a browser would send the origin `null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_READING = ("GET", "HEAD")


@dataclass(frozen=True)
class GateRules:
    """What the gate lets through.

    names: hosts by which this server may be addressed, in lower case. is_open: other computers can
    connect, by any address of this one, or by its name in any domain. token: None where none is
    needed.
    port: names the cookie, which a browser does not keep by port. form_token: in every form.
    """

    names: frozenset[str]
    is_open: bool = False
    token: str | None = None
    is_read_only: bool = False
    port: int = 0
    form_token: str = field(default_factory=token_urlsafe)

    @property
    def cookie(self) -> str:
        """The name of the cookie that stands for the token."""
        return f"flatout_{self.port}"

    @property
    def cookie_value(self) -> str:
        """Its value, from which the token cannot be computed: other ports get it, too."""
        return hmac.new((self.token or "").encode(), b"cookie", hashlib.sha256).hexdigest()

    def allows_host(self, header: str) -> bool:
        """Whether a request is really for this server, and not for a name that an attacker points
        at it (DNS rebinding).
        """
        host = host_in(header)
        if host in self.names or not self.is_open:
            return host in self.names
        # There, an attacker's name does not help without the token.
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host.partition(".")[0] in self.names
        return True

    def has_token(self, request: Request) -> bool:
        """Whether a request shows the token, in its cookie or in a header for programs."""
        if self.token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and is_equal(given.strip(), self.token):
            return True
        return is_equal(request.cookies.get(self.cookie, ""), self.cookie_value)


class AccessGate:
    """An ASGI application in front of another one.

    Args:
        app: the pages.
        rules: what they need.
    """

    def __init__(self, app: ASGIApp, rules: GateRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # Files of ours are asked for again, and answered with 304 where nothing changed.
                headers.setdefault("cache-control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        answer = self._answer(Request(scope)) or self._app
        await answer(scope, receive, with_headers)

    def _answer(self, request: Request) -> Response | None:
        """The answer to a request that no page is to see."""
        rules = self._rules
        if not rules.allows_host(request.headers.get("host", "")):
            return _refusal(421, "This server does not answer to that host name. Open the address "
                                 "that `flatout web` has printed.")  # fmt: skip
        given = request.query_params.get(TOKEN_PARAMETER)
        if rules.token is not None and given is not None and request.method in _READING:
            if not is_equal(given, rules.token):
                return _refusal(401, "The token in the address is wrong.")
            return self._admission(request)
        if not rules.has_token(request):
            return _refusal(401, "Open the address that `flatout web` has printed: it contains a "
                                 "token.")  # fmt: skip
        if request.method not in _READING and not is_same_origin(request.headers):
            return _refusal(403, "The request comes from another site.")
        return None

    def _admission(self, request: Request) -> Response:
        """Keeps the token in a cookie, and goes on to the page itself.

        Not by a redirect: where the link was followed from another site, a browser would not send
        this cookie along.
        """
        path = request.url.path
        # Two slashes would name another host.
        target = "/" + path.lstrip("/\\") if path.isascii() else "/"
        safe = "".join(sign for sign in target if sign.isalnum() or sign in "/-_.")
        page = HTMLResponse(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={safe}">'
            f'<title>flatout</title><a href="{safe}">flatout</a>'
        )
        is_https = request.url.scheme == "https"
        page.set_cookie(
            self._rules.cookie, self._rules.cookie_value, path="/", secure=is_https,
            httponly=True, samesite="strict",
        )  # fmt: skip
        return page


def is_equal(given: str, wanted: str) -> bool:
    """Compares two secrets in a time that says nothing about them."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def is_same_origin(headers: Headers) -> bool:
    """Whether a change was requested by a page of this server; every browser says so."""
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    return headers.get("sec-fetch-site") == "same-origin"


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status)
