"""Nodes that Ray places, followed from here: their lines come through a process that speaks Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from flatout.errors import RunFailed, UsageError
from flatout.nouns.finding import Finding
from flatout.nouns.launch import (
    AnyNodeAnswer,
    LaunchRequest,
    NodeEnded,
    NodeEvent,
    NodeSaid,
    NodesStarted,
)
from flatout.nouns.question import Broken
from flatout.system import clock
from flatout.system.child import ending_text
from flatout.system.conversing import Conversation
from flatout.system.nodes import log_path
from flatout.system.store import mapped_os_errors


def follow(python: str, request: LaunchRequest, folder: Path) -> Iterator[NodeEvent]:
    """What the nodes print, kept in a log each, and how each ends. They end with this.

    Raises:
        UsageError, RunFailed: what the process says that could not go on.
        TimeoutError: the limit has passed.
    """
    began_s = clock.elapsed_s()
    with mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(Conversation(python, "flatout.engine.nodes_on_ray"))
        with mapped_os_errors(folder):
            logs: list[IO[bytes]] = [
                stack.enter_context(open(log_path(folder, node), "wb"))
                for node in range(request.nodes)
            ]
        is_told = False
        for event in process.ask(request, AnyNodeAnswer):
            if isinstance(event, Broken):
                is_told = True
                if event.finding.rule == "launch-too-long":
                    raise TimeoutError
                raise _error(event, process.printed())
            if isinstance(event, NodeSaid):
                # A full disk costs the log, not the training.
                with contextlib.suppress(OSError):
                    logs[event.node].write(f"{event.text}\n".encode())
                    logs[event.node].flush()
            elif isinstance(event, NodesStarted):
                event = msgspec.structs.replace(event, folder=str(folder))
            elif isinstance(event, NodeEnded):
                event = msgspec.structs.replace(event, log=str(log_path(folder, event.node)))
            yield event
        code = process.exit_code()
        if code != 0 and not is_told:
            raise RunFailed(
                "node-failed",
                "the process that speaks to Ray broke off; Ray ends what it had placed.",
                because=f"it {ending_text(code)} after {clock.elapsed_s() - began_s:.0f} s",
                fix="look into what it printed, and at `ray status`",
                printed=process.printed(),
            )


def _error(broken: Broken, printed: str) -> UsageError | RunFailed:
    finding: Finding = broken.finding
    fix = "; ".join(one.text for one in finding.fixes) or "look into what it printed"
    if broken.exit_code == 2:
        return UsageError(finding.rule, finding.problem, because=finding.because, fix=fix)
    return RunFailed(
        finding.rule, finding.problem, because=finding.because, fix=fix, printed=printed
    )
