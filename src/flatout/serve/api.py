"""`flatout serve`: a run or an exported file that answers requests, and swaps of it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Iterator

import msgspec

from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.schema.finding import Finding, Fix
from flatout.schema.serve_control import ReplicaLost, ServeEvent, ServeStarted, SwapReply
from flatout.schema.serve_request import ModelRequest, ServeRequest
from flatout.serve.replica_plan import (
    ModelSource,
    find_model,
    is_exported,
    plan_replicas,
    template_of,
)
from flatout.system import serve_files
from flatout.system.server_socket import is_loopback, listening_socket
from flatout.system.signals import Interrupts

_PACKAGES = (
    "starlette", "uvicorn", "httptools", "python_multipart", "PIL", "swagger_ui_bundle",
)  # fmt: skip

# The command line asks for these here.
__all__ = ["interrupts", "is_exported", "secret_of", "serve", "swap"]


def interrupts() -> Interrupts:
    """Ctrl-C and SIGTERM as a count, while the value is open."""
    return Interrupts()


def secret_of(text: str) -> str:
    """A token as it was given: itself, or `@FILE`.

    Raises:
        UsageError: bad-token.
    """
    return serve_files.secret_of(text, "--token")


def serve(
    model: ModelRequest | ModelSource, request: ServeRequest, interrupts: Interrupts
) -> Iterator[ServeEvent]:
    """Starts replicas and a server, and gives what happens, until it is interrupted.

    Args:
        model: one of this machine, or one that was found elsewhere.
        request: how it is served.
        interrupts: Ctrl-C.

    Raises:
        UsageError: serve-package-missing, port-in-use, bad-address, and those of `find_model`;
        RunFailed: what kept a replica from starting; KeyboardInterrupt: before it was ready.
    """
    _check_packages()
    with listening_socket(request.host, request.port) as listener:
        source = model if isinstance(model, ModelSource) else find_model(model)
        plan = plan_replicas(source, request)
        interrupts.give_way()
        num_replicas = len(plan.starts) if plan.num_cores is None else None
        yield _started(source, request, num_replicas)
        # Only here: they import Starlette and uvicorn.
        from flatout.serve.http_server import new_event_loop
        from flatout.serve.running_server import RunningServer

        server = RunningServer(request, plan, listener, interrupts)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            running = runner.get_loop().create_task(server.run())
            # The loop is paused while an event is taken: what shows them must not block.
            while (event := runner.run(server.events.get())) is not None:
                yield _with_log(event)
            runner.run(_result_of(running))
        if server.was_interrupted:
            raise KeyboardInterrupt


def swap(model: ModelRequest | ModelSource | None, port: int | None) -> Iterator[SwapReply]:
    """Asks a running server for another model; gives what happens. model: None swaps back.

    Raises:
        UsageError: no-server, several-servers, and those of `find_model`; RunFailed: server-gone.
    """
    from flatout.serve.control import ask_swap, choose_server

    server = choose_server(serve_files.running_servers(), port)
    source = find_model(model) if isinstance(model, ModelRequest) else model
    yield from ask_swap(server, None if source is None else template_of(source))


def _started(
    source: ModelSource, request: ServeRequest, num_replicas: int | None
) -> ServeStarted:  # fmt: skip
    return ServeStarted(
        name=source.name,
        place=source.place,
        num_replicas=num_replicas,
        pid=os.getpid(),
        findings=(*source.findings, *_warnings(request)),
    )


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            "serve-package-missing",
            f"`flatout serve` needs {', '.join(missing)}.",
            because="the server is built on them; training does without",
            fix="pip install 'flatout[serve]'",
        )


def _warnings(request: ServeRequest) -> Iterator[Finding]:
    if is_loopback(request.host) or request.token is not None:
        return
    yield Finding(
        rule="serve-open-to-network",
        severity="warning",
        problem=f"other computers can use this server without a token: --host {request.host}.",
        because="every program that reaches the port can send requests",
        fixes=(
            Fix(text="set a token: FLATOUT_SERVE_TOKEN=... or --token @FILE"),
            Fix(text="leave --host out, and let a reverse proxy on this computer forward to it"),
        ),
    )


async def _result_of(running: asyncio.Task[None]) -> None:
    await running


def _with_log(event: ServeEvent) -> ServeEvent:
    """The loss of a replica, with the file in which what it printed is kept."""
    if not isinstance(event, ReplicaLost) or not event.printed.strip():
        return event
    log = runs_api.record_crash(event.printed)
    fixes = (*event.finding.fixes, Fix(text=f"read what it printed: {log}"))
    finding = msgspec.structs.replace(event.finding, fixes=fixes)
    return msgspec.structs.replace(event, finding=finding, printed="")
