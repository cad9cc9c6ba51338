"""Which host names a request may use for this server.

An attacker can point a name of theirs at 127.0.0.1, and have a browser on this computer open it: to
the browser, the server then belongs to their page (DNS rebinding). Its Host header still has the
attacker's name.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import Scope

from flatout.errors import UsageError
from flatout.schema.addresses import host_in
from flatout.schema.serve_request import ServeRequest
from flatout.serve.request_body import header
from flatout.system.server_socket import is_loopback, own_name

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def allowed_hosts(request: ServeRequest) -> frozenset[str] | None:
    """The host names that are accepted; `*.example.com` stands for all below; None: any.

    By default, a server that other computers can reach accepts any: it has more names than are
    known here.
    """
    named = request.allowed_hosts
    if "*" in named or not (named or is_loopback(request.host)):
        return None
    own = own_name().lower()
    return frozenset({*_LOOPBACK, request.host.lower(), own, own.partition(".")[0], *named})


def check_host(scope: Scope, allowed: Collection[str]) -> None:
    """Refuses a request for another host. One without a Host header is not from a browser.

    Raises:
        UsageError: host-not-allowed
    """
    given = header(scope, b"host")
    if not given:
        return
    host = host_in(given)
    if host in allowed or any(one[:2] == "*." and host.endswith(one[1:]) for one in allowed):
        return
    raise UsageError(
        "host-not-allowed",
        f"the server does not answer to the host name `{given[:100]}`.",
        because="it accepts its own names only, so that pages of other sites cannot use it",
        fix="use the address that `flatout serve` has printed; for a reverse proxy, start the "
        "server with `--allowed-hosts NAME`",
    )
