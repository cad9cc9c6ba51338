"""The verb that starts a person's own script on several nodes, as its framework expects it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from pathlib import Path

import msgspec

from flatout import __version__, flow
from flatout.errors import RunFailed, UsageError
from flatout.nouns.launch import (
    LaunchRequest,
    NodeEnded,
    NodeEvent,
    NodeSaid,
    NodesStarted,
    computing,
    rendezvous,
)
from flatout.nouns.machine import Machine
from flatout.nouns.units import seconds_text
from flatout.system import environments, folders, made_environments, nodes_on_ray
from flatout.system.child import ending_text
from flatout.system.nodes import Nodes, free_places
from flatout.system.runs import free_id

# Nodes here are processes of one machine, and nothing else is to reach them.
_HOST = "127.0.0.1"
_KEPT_LINES = 400


def launch(request: LaunchRequest) -> Generator[NodeEvent]:
    """Starts all nodes or none, and tells what they print, while it is iterated over.

    Raises:
        UsageError: script-not-found, script-not-started, folder-not-writable; what choosing an
            interpreter says.
        RunFailed: node-failed, launch-too-long.
    """
    script = Path(request.script).expanduser().absolute()
    if not script.is_file():
        raise UsageError(
            "script-not-found",
            f"there is no script {script}.",
            fix="give the path of a Python file",
        )
    asked = made_environments.asked_python(request.python, request.env)
    python = environments.find_interpreter(asked)
    folder = _log_folder(request, script)
    if request.on == "ray":
        environments.check_interpreter(python, __version__)
        on_ray = msgspec.structs.replace(request, script=str(script))
        yield from _follow(request, nodes_on_ray.follow(python, on_ray, folder), folder)
        return
    gpus, threads = _shares(flow.probe(python), request.nodes)
    told = rendezvous(request.framework, free_places(_HOST, request.nodes))
    own = [
        {**told[node], **computing(request.framework, gpus[node] if gpus else None, threads)}
        for node in range(request.nodes)
    ]
    argv = [python, str(script), *request.arguments]
    with Nodes(argv, own, folder) as nodes:
        yield NodesStarted(
            num_nodes=request.nodes, folder=str(folder), gpus=tuple(gpus), threads=threads
        )
        yield from _follow(request, nodes.follow(request.limit_s), folder)


def _follow(
    request: LaunchRequest, events: Iterable[NodeEvent], folder: Path
) -> Generator[NodeEvent]:
    last: dict[int, deque[str]] = {}
    failed: NodeEnded | None = None
    try:
        for event in events:
            if isinstance(event, NodeSaid):
                last.setdefault(event.node, deque(maxlen=_KEPT_LINES)).append(event.text)
            elif isinstance(event, NodeEnded) and event.exit_code and failed is None:
                failed = event
            yield event
    except TimeoutError as error:
        raise RunFailed(
            "launch-too-long",
            f"not all nodes had ended after {seconds_text(request.limit_s or 0)}; all were ended.",
            because="nodes that wait for each other look the same as nodes that compute",
            fix=f"look at what each was doing, in {folder}; or allow more: --limit SECONDS",
            printed="\n".join(line for lines in last.values() for line in lines),
        ) from error
    if failed is not None:
        said = [line for line in last.get(failed.node, ()) if line.strip()]
        raise RunFailed(
            "node-failed",
            f"node {failed.node} {ending_text(failed.exit_code)}; the others were ended.",
            because=said[-1].strip() if said else "it has printed nothing",
            fix=f"read what it printed: {failed.log}",
            printed="\n".join(said),
        )


def _log_folder(request: LaunchRequest, script: Path) -> Path:
    if request.logs is not None:
        return Path(request.logs).expanduser().absolute()
    parent = folders.state_folder() / "launches"
    return parent / free_id(script.stem, parent)


def _shares(machine: Machine, num_nodes: int) -> tuple[list[int], int]:
    """A GPU for each node, or none for any; and how many threads each may use."""
    gpus = [gpu.index for gpu in machine.gpus]
    cpu = machine.cpu
    num_cores = min(cpu.num_cores or 1, cpu.num_threads or 1)
    return gpus[:num_nodes] if len(gpus) >= num_nodes else [], max(1, num_cores // num_nodes)
