"""A user's script on the nodes of Ray: `python -m flatout.engine.launch.ray_script_nodes`.

Asked by the command line, by one `LaunchRequest` as JSON on standard input, which then stays open:
its end means that the parent no longer waits. Ray places an actor for each node, all or none, and
each starts the script. Ray starts none of them again.
"""

from __future__ import annotations

import contextlib
import io
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from flatout.engine.launch.ray_cluster import PLACE_LIMIT_S, NoAnswer, RayCluster, join, ray_module
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.script_launch import (
    LaunchRequest,
    NodeAddresses,
    NodeEnded,
    NodeEvent,
    NodeSaid,
    NodesStarted,
    computing,
    rendezvous,
)
from flatout.schema.units import counted_text
from flatout.system import clock
from flatout.system.die_with_parent import GRACE_S, guarded
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio
from flatout.system.process_env import worker_environment
from flatout.system.progress_output import printed_lines

_POLL_S = 0.2
_LAST_LINES_S = 2.0
# As a process that was killed: its node is gone.
_GONE = -9


class ScriptNode:
    """A node of the script, as an actor of Ray's."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader: threading.Thread | None = None

    def addresses(self) -> NodeAddresses:
        """Where the others reach it: on the address that Ray knows its machine by."""
        host = str(ray_module().util.get_node_ip_address())
        with socket.socket() as first, socket.socket() as second:
            for listening in (first, second):
                listening.bind((host, 0))
            return NodeAddresses(host, (first.getsockname()[1], second.getsockname()[1]))

    def start(self, argv: list[str], variables: dict[str, str]) -> None:
        """Starts the script with this node's interpreter."""
        self._process = subprocess.Popen(
            guarded(sys.executable, argv),
            env={**worker_environment(), "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def poll_output(self) -> tuple[list[str], int | None]:
        """The lines since the last time, and the exit code once it has ended."""
        assert self._process is not None and self._reader is not None
        code = self._process.poll()
        if code is not None:
            self._reader.join(_LAST_LINES_S)
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        return lines, code

    def end(self) -> None:
        """Ends it, with what it has started: the guard does when the pipe ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2 * GRACE_S)

    def _read(self) -> None:
        assert self._process is not None
        stream = self._process.stdout
        assert isinstance(stream, io.BufferedReader)
        with stream:
            for line in printed_lines(stream):
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))


def launch(request: LaunchRequest) -> Iterator[NodeEvent]:
    """Places all nodes or none, starts the script on each, and forwards their output.

    Raises:
        UsageError: ray-not-installed.
        RunFailed: scheduler-not-reachable, nodes-not-placed, launch-too-long.
    """
    with join() as cluster:
        has_gpus = cluster.ray.cluster_resources().get("GPU", 0) >= request.nodes
        actors = _placed(cluster, request.nodes, has_gpus=has_gpus)
        try:
            yield from _run(cluster, request, actors, has_gpus=has_gpus)
        finally:
            _end(cluster, actors)


def _placed(cluster: RayCluster, count: int, *, has_gpus: bool) -> list[Any]:
    """An actor for each node, as far apart as there are machines: room for all, or for none."""
    bundle = {"CPU": 1.0, **({"GPU": 1.0} if has_gpus else {})}
    bundles = cluster.reserve(lambda: [bundle] * count)
    if not bundles:
        total = cluster.ray.cluster_resources().get("CPU", 0)
        raise RunFailed(
            "nodes-not-placed",
            f"Ray found no resources for {counted_text(count, 'node')} within {PLACE_LIMIT_S:.0f} "
            "s.",
            because=f"each node needs a CPU; the cluster has {total:.0f}, and other jobs may hold "
            "them",
            fix="use fewer --nodes; `ray status` shows who holds what",
        )
    return cluster.actors(ScriptNode, bundles)


def _run(
    cluster: RayCluster, request: LaunchRequest, actors: list[Any], *, has_gpus: bool
) -> Iterator[NodeEvent]:
    nodes = _start(cluster, request, actors, has_gpus=has_gpus)
    yield NodesStarted(
        num_nodes=request.nodes,
        folder="",
        gpus=(),
        threads=1,
        hosts=tuple(node.host for node in nodes),
    )
    began_s = clock.elapsed_s()
    running = dict(enumerate(actors))
    while running:
        ended: dict[int, int] = {}
        for node, actor in running.items():
            try:
                ((lines, code),) = cluster.fetch([actor.poll_output.remote()])
            except NoAnswer as error:
                lines, code = [f"Ray: {error}"], _GONE
            yield from (NodeSaid(node=node, text=line) for line in lines)
            if code is not None:
                ended[node] = code
        for node, code in ended.items():
            del running[node]
            yield NodeEnded(node=node, exit_code=code, log="")
        if any(ended.values()):
            _end(cluster, list(running.values()))
            for node in running:
                yield NodeEnded(node=node, exit_code=_GONE, log="", is_ours=True)
            return
        if request.limit_s is not None and clock.elapsed_s() - began_s > request.limit_s:
            raise RunFailed(
                "launch-too-long",
                "the script exceeded the time limit.",
                fix="allow more time: --limit SECONDS",
            )
        clock.sleep_s(_POLL_S)


def _start(
    cluster: RayCluster, request: LaunchRequest, actors: list[Any], *, has_gpus: bool
) -> list[NodeAddresses]:
    """Starts the script on all nodes; where each of them is.

    Raises:
        RunFailed: nodes-not-placed.
    """
    argv = [request.script, *request.arguments]
    # Ray has hidden the other GPUs from each of its own.
    own = {} if has_gpus else computing(request.framework, None, 1)
    try:
        nodes: list[NodeAddresses] = cluster.fetch([actor.addresses.remote() for actor in actors])
        variables = rendezvous(request.framework, nodes)
        cluster.fetch(
            [
                actor.start.remote(argv, {**own, **rendezvous_variables})
                for actor, rendezvous_variables in zip(actors, variables, strict=True)
            ]
        )
    except NoAnswer as error:
        raise RunFailed(
            "nodes-not-placed",
            f"Ray reserved {counted_text(len(actors), 'node')}, but nothing starts there.",
            because=str(error),
            fix="every machine needs this flatout, and the script at this path",
        ) from error
    return nodes


def _end(cluster: RayCluster, actors: list[Any]) -> None:
    with contextlib.suppress(NoAnswer):
        cluster.fetch([actor.end.remote() for actor in actors], 3 * GRACE_S)


def main() -> int:
    """Carries out one request; gives the exit code."""
    stdio = JsonStdio()
    request = stdio.read(LaunchRequest)
    # Ray ends the actors of a driver that is gone.
    stdio.exit_when_closed()
    try:
        for event in launch(request):
            stdio.answers.write(event)
    except FlatoutError as error:
        stdio.answers.write(ProcessFailed(finding=finding_from(error), exit_code=error.exit_code))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        stdio.answers.write(ProcessFailed(finding=internal_error(error), exit_code=3))
        return 3
    return 0


if __name__ == "__main__":
    end(main())
