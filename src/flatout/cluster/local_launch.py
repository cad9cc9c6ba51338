"""Starts a user's script on several nodes, the way its framework expects."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from flatout import __version__
from flatout.cluster import ray_script_nodes
from flatout.cluster.node_processes import (
    NodeCommand,
    NodeProcesses,
    find_script,
    free_addresses,
    judged,
    log_folder,
)
from flatout.runs import api as runs_api
from flatout.schema.machine import Machine
from flatout.schema.script_launch import (
    LaunchRequest,
    NodeEvent,
    NodesStarted,
    computing,
    rendezvous,
)
from flatout.system.process_env import loopback_variables
from flatout.system.store import interpreters

# Nodes here are processes of one machine. Where a framework listens, it decides by itself.
_HOST = "127.0.0.1"


def launch(request: LaunchRequest) -> Generator[NodeEvent]:
    """Starts all nodes or none, and yields their output while iterated over.

    Raises:
        UsageError: script-not-found, script-not-started, folder-not-writable; what choosing an
            interpreter says.
        RunFailed: node-failed, launch-too-long.
    """
    script = find_script(request.script)
    python = interpreters.resolve_interpreter(request.python, request.env)
    folder = log_folder(request, script)
    if request.on == "ray":
        interpreters.check_interpreter(python, __version__)
        on_ray = msgspec.structs.replace(request, script=str(script))
        yield from judged(request, ray_script_nodes.follow(python, on_ray, folder), folder)
        return
    gpus, threads = _shares(runs_api.probe(python), request.nodes)
    variables = rendezvous(request.framework, free_addresses(_HOST, request.nodes))
    commands = [
        NodeCommand(
            argv=(python, str(script), *request.arguments),
            variables={
                **loopback_variables(),
                **variables[node],
                **computing(request.framework, gpus[node] if gpus else None, threads),
            },
        )
        for node in range(request.nodes)
    ]
    with NodeProcesses(commands, folder) as nodes:
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
