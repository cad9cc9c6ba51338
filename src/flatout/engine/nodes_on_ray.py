"""A person's own script on the nodes of a Ray cluster: `python -m flatout.engine.nodes_on_ray`.

Asked by the command line, by one `LaunchRequest` as JSON on standard input, which then stays open:
its end means that nobody waits any more. Ray places an actor for each node, all or none, and each
starts the script. Ray starts none of them again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from flatout.engine.data_files import library
from flatout.errors import FlatoutError, RunFailed
from flatout.nouns.finding import Finding, finding_from
from flatout.nouns.launch import (
    LaunchRequest,
    NodeEnded,
    NodeEvent,
    NodePlace,
    NodeSaid,
    NodesStarted,
    computing,
    rendezvous,
)
from flatout.nouns.question import Answer, Broken
from flatout.system import clock
from flatout.system.guarded import GRACE_S, guarded
from flatout.system.variables import head_address, worker_environment

_POLL_S = 0.2
_PLACE_LIMIT_S = 60.0
_LAST_LINES_S = 2.0
# As a process that was killed: its node is gone.
_GONE = -9


class Node:
    """A node of the script, as an actor of Ray's."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader: threading.Thread | None = None

    def place(self) -> NodePlace:
        """Where the others reach it: on the address that Ray knows its machine by."""
        host = str(library("ray", package="Ray", extra="ray").util.get_node_ip_address())
        with socket.socket() as one, socket.socket() as other:
            for each in (one, other):
                each.bind((host, 0))
            return NodePlace(host, (one.getsockname()[1], other.getsockname()[1]))

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

    def said(self) -> tuple[list[str], int | None]:
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
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._lines.put(line.decode(errors="replace").rstrip("\r\n"))


def launch(request: LaunchRequest) -> Iterator[NodeEvent]:
    """Places all nodes or none, starts the script on each, and tells what they print.

    Raises:
        UsageError: data-package-not-installed.
        RunFailed: scheduler-not-reachable, nodes-not-placed, launch-too-long.
    """
    ray = library("ray", package="Ray", extra="ray")
    try:
        ray.init(address=head_address("ray") or "auto", log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray has several for a head that is not there.
        raise RunFailed(
            "scheduler-not-reachable",
            "no Ray runs here, or its head does not answer.",
            because=(str(error).splitlines() or [type(error).__name__])[0],
            fix="start one (ray start --head), or set RAY_ADDRESS; or use --on local",
        ) from error
    has_gpus = ray.cluster_resources().get("GPU", 0) >= request.nodes
    actors = _placed(ray, request.nodes, has_gpus=has_gpus)
    try:
        yield from _run(ray, request, actors, has_gpus=has_gpus)
    finally:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get([actor.end.remote() for actor in actors], timeout=3 * GRACE_S)
        ray.shutdown()


def _placed(ray: Any, count: int, *, has_gpus: bool) -> list[Any]:
    """An actor for each node, as far apart as there are machines: room for all, or for none."""
    bundle = {"CPU": 1.0, **({"GPU": 1.0} if has_gpus else {})}
    group = ray.util.placement_group([bundle] * count, strategy="SPREAD")
    if not group.wait(_PLACE_LIMIT_S):
        total = ray.cluster_resources().get("CPU", 0)
        raise RunFailed(
            "nodes-not-placed",
            f"Ray has not found room for {count} nodes within {_PLACE_LIMIT_S:.0f} s.",
            because=f"each takes a CPU; the cluster has {total:.0f}, and others may hold them",
            fix="give fewer --nodes; `ray status` tells who holds what",
        )
    kind = ray.remote(Node)
    return [
        kind.options(
            num_cpus=1,
            num_gpus=1 if has_gpus else 0,
            max_restarts=0,
            scheduling_strategy=ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=number
            ),
        ).remote()
        for number in range(count)
    ]


def _run(
    ray: Any, request: LaunchRequest, actors: list[Any], *, has_gpus: bool
) -> Iterator[NodeEvent]:
    places = ray.get([actor.place.remote() for actor in actors])
    argv = [request.script, *request.arguments]
    starts = []
    for actor, told in zip(actors, rendezvous(request.framework, places), strict=True):
        # Ray has hidden the other GPUs from each of its own.
        own = {} if has_gpus else computing(request.framework, None, 1)
        starts.append(actor.start.remote(argv, {**own, **told}))
    ray.get(starts)
    yield NodesStarted(
        num_nodes=request.nodes,
        folder="",
        gpus=(),
        threads=1,
        hosts=tuple(place.host for place in places),
    )
    began_s = clock.elapsed_s()
    running = dict(enumerate(actors))
    while running:
        ended: dict[int, int] = {}
        for node, actor in running.items():
            try:
                lines, code = ray.get(actor.said.remote())
            except ray.exceptions.RayError as error:
                lines, code = [f"Ray: {str(error).splitlines()[0]}"], _GONE
            yield from (NodeSaid(node=node, text=line) for line in lines)
            if code is not None:
                ended[node] = code
        for node, code in ended.items():
            del running[node]
            yield NodeEnded(node=node, exit_code=code, log="")
        if any(ended.values()):
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get([actor.end.remote() for actor in running.values()])
            for node in running:
                yield NodeEnded(node=node, exit_code=_GONE, log="", is_ours=True)
            return
        if request.limit_s is not None and clock.elapsed_s() - began_s > request.limit_s:
            raise RunFailed("launch-too-long", "the limit has passed.", fix="--limit SECONDS")
        clock.sleep_s(_POLL_S)


def main() -> int:
    """Carries out one request; gives the exit code."""
    stream = os.fdopen(os.dup(1), "wb")
    # Whatever Ray prints must not get between the lines.
    os.dup2(2, 1)

    def tell(line: Answer) -> None:
        stream.write(msgspec.json.encode(line) + b"\n")
        stream.flush()

    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=LaunchRequest)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        for event in launch(request):
            tell(event)
    except FlatoutError as error:
        tell(Broken(finding=finding_from(error), exit_code=error.exit_code))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        problem = f"flatout itself failed: {type(error).__name__}: {error}"
        finding = Finding(rule="internal-error", severity="error", problem=problem)
        tell(Broken(finding=finding, exit_code=3))
        return 3
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    # Ray ends the actors of a driver that is gone.
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
