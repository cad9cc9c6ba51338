"""Nodes that Ray places: a process that talks to Ray passes on their output."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from flatout.cluster.node_processes import log_path
from flatout.errors import RunFailed, UsageError
from flatout.schema.finding import Finding
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.script_launch import (
    AnyNodeReply,
    LaunchRequest,
    NodeEnded,
    NodeEvent,
    NodeSaid,
    NodesStarted,
)
from flatout.system import clock
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.worker_process import ending_text


def follow(python: str, request: LaunchRequest, folder: Path) -> Iterator[NodeEvent]:
    """Yields the output of the nodes, with a log for each, and how each ends. They end with this.

    Raises:
        UsageError, RunFailed: what the process says that could not continue.
        TimeoutError: the limit has passed.
    """
    began_s = clock.elapsed_s()
    with mapped_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(JsonProcess(python, "flatout.engine.launch.ray_script_nodes"))
        with mapped_os_errors(folder):
            logs: list[IO[bytes]] = [
                stack.enter_context(open(log_path(folder, node), "wb"))
                for node in range(request.nodes)
            ]
        try:
            for event in process.ask(request, AnyNodeReply):
                if isinstance(event, ProcessFailed):
                    if event.finding.rule == "launch-too-long":
                        raise TimeoutError
                    raise _error(event)
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
        except ProcessEnded as ended:
            raise RunFailed(
                "node-failed",
                "the process that talks to Ray exited unexpectedly; Ray stops its tasks.",
                because=f"it {ending_text(ended.exit_code)} after "
                f"{clock.elapsed_s() - began_s:.0f} s",
                fix="check its output and `ray status`",
                printed=process.printed(),
            ) from ended


def _error(broken: ProcessFailed) -> UsageError | RunFailed:
    finding: Finding = broken.finding
    fix = "; ".join(solution.text for solution in finding.fixes) or "check its output"
    if broken.exit_code == 2:
        return UsageError(finding.rule, finding.problem, because=finding.because, fix=fix)
    return RunFailed(
        finding.rule, finding.problem, because=finding.because, fix=fix, printed=broken.printed
    )
