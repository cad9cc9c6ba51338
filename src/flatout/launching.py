"""The verb that starts a person's own script on several nodes, as its framework expects it."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from flatout import __version__, flow
from flatout.nouns.launch import LaunchRequest, NodeEvent, NodesStarted, computing, rendezvous
from flatout.nouns.machine import Machine
from flatout.system import environments, made_environments, nodes_on_ray
from flatout.system.nodes import (
    NodeCommand,
    Nodes,
    find_script,
    free_places,
    judged,
    log_folder,
)
from flatout.system.variables import loopback_variables

# Nodes here are processes of one machine. Where a framework listens, it decides by itself.
_HOST = "127.0.0.1"


def launch(request: LaunchRequest) -> Generator[NodeEvent]:
    """Starts all nodes or none, and tells what they print, while it is iterated over.

    Raises:
        UsageError: script-not-found, script-not-started, folder-not-writable; what choosing an
            interpreter says.
        RunFailed: node-failed, launch-too-long.
    """
    script = find_script(request.script)
    asked = made_environments.asked_python(request.python, request.env)
    python = environments.find_interpreter(asked)
    folder = log_folder(request, script)
    if request.on == "ray":
        environments.check_interpreter(python, __version__)
        on_ray = msgspec.structs.replace(request, script=str(script))
        yield from judged(request, nodes_on_ray.follow(python, on_ray, folder), folder)
        return
    gpus, threads = _shares(flow.probe(python), request.nodes)
    told = rendezvous(request.framework, free_places(_HOST, request.nodes))
    commands = [
        NodeCommand(
            argv=(python, str(script), *request.arguments),
            variables={
                **loopback_variables(),
                **told[node],
                **computing(request.framework, gpus[node] if gpus else None, threads),
            },
        )
        for node in range(request.nodes)
    ]
    with Nodes(commands, folder) as nodes:
        yield NodesStarted(
            num_nodes=request.nodes, folder=str(folder), gpus=tuple(gpus), threads=threads
        )
        yield from judged(request, nodes.follow(request.limit_s), folder)


def _shares(machine: Machine, num_nodes: int) -> tuple[list[int], int]:
    """A GPU for each node, or none for any; and how many threads each may use."""
    gpus = [gpu.index for gpu in machine.gpus]
    cpu = machine.cpu
    num_cores = min(cpu.num_cores or 1, cpu.num_threads or 1)
    return gpus[:num_nodes] if len(gpus) >= num_nodes else [], max(1, num_cores // num_nodes)
