"""`flatout serve`: a run or an exported file that answers requests, and swaps of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import msgspec

from flatout.errors import RunFailed
from flatout.runs import api as runs_api
from flatout.schema.finding import Finding, Fix
from flatout.schema.serve_control import (
    ReplicaLost,
    ServeEvent,
    ServeStarted,
    ServeStopping,
    SwapReply,
)
from flatout.schema.serve_request import ModelRequest, ServeRequest
from flatout.serve.replica_plan import (
    ModelSource,
    find_model,
    is_exported,
    plan_replicas,
    template_of,
)
from flatout.system import clock, serve_files
from flatout.system.open_file_limit import raise_open_file_limit
from flatout.system.optional_packages import require_packages
from flatout.system.server_socket import is_loopback, listening_socket
from flatout.system.signals import Interrupts, raised_interrupts

_POLL_S = 0.2
_PACKAGES = (
    "starlette", "uvicorn", "httptools", "python_multipart", "PIL", "swagger_ui_bundle",
)  # fmt: skip

# The command line asks for these here.
__all__ = ["interrupts", "is_exported", "secret_of", "serve", "serve_on_ray", "swap"]


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
    raise_open_file_limit()
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


def serve_on_ray(
    model: ModelRequest, request: ServeRequest, interrupts: Interrupts
) -> Iterator[ServeEvent]:
    """The same application on Ray Serve, until it is interrupted.

    Args:
        model: one of this machine, which all machines of the Ray cluster see.
        request: how it is served.
        interrupts: Ctrl-C.

    Raises:
        UsageError: serve-package-missing, ray-not-installed, port-in-use, bad-address, and those of
        `find_model`; RunFailed: scheduler-not-reachable, ray-serve-failed; KeyboardInterrupt:
        before it was ready.
    """
    _check_packages()
    from flatout.serve.ray_serve import RayServer

    source = find_model(model)
    server = RayServer(source, request)
    interrupts.give_way()
    with _ended_by(server.end):
        request, findings = server.join()
        interrupts.give_way()
        yield _started(source, request, server.num_replicas, findings)
        # Ray waits for room without a limit.
        with raised_interrupts():
            # Pressed while the event was shown.
            interrupts.give_way()
            ready = server.start()
        # Ray has set a handler of its own for SIGTERM.
        with Interrupts() as since:
            yield ready
            while not (interrupts.count or since.count):
                clock.sleep_s(_POLL_S)
            yield ServeStopping(num_open=None)


def swap(model: ModelRequest | ModelSource | None, port: int | None) -> Iterator[SwapReply]:
    """Asks a running server for another model; gives what happens. model: None swaps back.

    Raises:
        UsageError: no-server, several-servers, and those of `find_model`; RunFailed: server-gone,
        server-not-understood.
    """
    from flatout.serve.control import ask_swap, choose_server

    server = choose_server(serve_files.running_servers(), port)
    source = find_model(model) if isinstance(model, ModelRequest) else model
    yield from ask_swap(server, None if source is None else template_of(source))


def _started(
    source: ModelSource,
    request: ServeRequest,
    num_replicas: int | None,
    findings: Sequence[Finding] = (),
) -> ServeStarted:
    return ServeStarted(
        name=source.name,
        place=source.place,
        num_replicas=num_replicas,
        pid=os.getpid(),
        findings=(*source.findings, *findings, *_warnings(request)),
    )


def _check_packages() -> None:
    require_packages("serve-package-missing", "`flatout serve`", _PACKAGES, extra="serve")


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


@contextlib.contextmanager
def _ended_by(end: Callable[[], None]) -> Iterator[None]:
    """Calls `end` after the block. What it raises does not hide what the block has failed of."""
    hidden: tuple[type[RunFailed], ...] = ()
    try:
        yield
    except Exception:
        hidden = (RunFailed,)
        raise
    finally:
        # The second Ctrl-C does not wait for what was accepted.
        with raised_interrupts(), contextlib.suppress(*hidden):
            end()


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
