"""`flatout web`: opens the port, and answers until Ctrl-C; or writes pages as files."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from flatout.errors import FlatoutError
from flatout.schema.web_request import (
    TOKEN_PARAMETER,
    WebExport,
    WebExported,
    WebReady,
    WebRequest,
)
from flatout.system import serve_files
from flatout.system.optional_packages import require_packages
from flatout.system.server_socket import is_loopback, listening_socket, own_name
from flatout.system.store.metric_index import forget_removed_runs

if TYPE_CHECKING:
    import uvicorn

    from flatout.web.page import PageContext
    from flatout.web.run_cache import RunCache

_PACKAGES = ("starlette", "uvicorn", "jinja2", "python_multipart")
_EVERY_ADDRESS = ("0.0.0.0", "::")


def secret_of(text: str) -> str:
    """A token as it was given: itself, or `@FILE`.

    Raises:
        UsageError: bad-token.
    """
    return serve_files.secret_of(text, "--token")


def export(request: WebExport) -> WebExported:
    """Copies runs as pages that need no server.

    Raises:
        UsageError: web-package-missing, and as `web/export.py` says.
    """
    _check_packages()
    from flatout.web.export import export_runs

    return export_runs(request)


class WebServer:
    """The server of the pages, while the context is open.

    Args:
        request: where and how.

    ready: its address.

    Raises:
        UsageError: web-package-missing, port-in-use, bad-address.
    """

    def __init__(self, request: WebRequest) -> None:
        _check_packages()
        self._listener = listening_socket(request.host, request.port)
        self._request = request
        self._is_open = not is_loopback(request.host)
        self._token = request.token
        # Also on loopback: other users can connect there, and pages change the machine.
        if self._token is None and (self._is_open or not request.is_read_only):
            self._token = secrets.token_urlsafe(24)
        self._port: int = self._listener.getsockname()[1]
        self.ready = WebReady(
            url=self._url(), needs_token=self._token is not None, is_read_only=request.is_read_only
        )
        # Before someone opens the address: the first page would wait for it.
        self._context, self._server = self._loaded()

    def __enter__(self) -> WebServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._listener.close()

    def run(self) -> str | None:
        """Answers requests until Ctrl-C.

        Returns the goal of a change to this machine that is still being made: the process ends
        after it.
        """
        self._context.health.latest()
        threading.Thread(target=_look_at_runs, args=(self._context.runs,), daemon=True).start()
        # uvicorn ends in good order at Ctrl-C, and then raises it.
        with contextlib.suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._listener])
        change = self._context.changes.latest()
        return change.goal if change is not None and change.is_running else None

    def _loaded(self) -> tuple[PageContext, uvicorn.Server]:
        """The pages, and what answers with them."""
        # Only here: these import Starlette and uvicorn.
        import uvicorn
        from starlette.concurrency import run_in_threadpool

        from flatout.web import render
        from flatout.web.application import application
        from flatout.web.gate import GateRules
        from flatout.web.page import PageContext
        from flatout.web.run_cache import SERVER_LIMITS, RunCache

        context = PageContext(runs=RunCache(limits=SERVER_LIMITS))
        rules = GateRules(
            names=frozenset(self._names()), is_open=self._is_open, token=self._token,
            is_read_only=self._request.is_read_only, port=self._port,
        )  # fmt: skip
        server: uvicorn.Server
        app = application(context, rules, lambda: server.should_exit)
        config = uvicorn.Config(
            app, lifespan="off", ws="none", access_log=False, log_config=None,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=5,
        )  # fmt: skip
        config.load()
        server = uvicorn.Server(config)
        # In a thread, as pages are: what that needs is loaded as well.
        asyncio.run(run_in_threadpool(render.prepare))
        return context, server

    def _names(self) -> set[str]:
        """Hosts in the addresses of this server."""
        names = {"localhost", "127.0.0.1", "::1", self._request.host.lower()}
        return names | {own_name().lower().partition(".")[0]} if self._is_open else names

    def _url(self) -> str:
        host = self._request.host
        if host in _EVERY_ADDRESS:
            host = own_name()
        address = f"http://{f'[{host}]' if ':' in host else host}:{self._port}/"
        if self._token is None:
            return address
        return f"{address}home?{urlencode({TOKEN_PARAMETER: self._token})}"


def _look_at_runs(runs: RunCache) -> None:
    """Begins to read all runs, so that the first list of them is quick."""
    with contextlib.suppress(FlatoutError, OSError):
        forget_removed_runs(path.name for path in runs.paths())
        runs.read_rest()


def _check_packages() -> None:
    require_packages("web-package-missing", "`flatout web`", _PACKAGES, extra="web")
