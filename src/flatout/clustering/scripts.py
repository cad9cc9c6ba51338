"""A person's own script in the nodes of a cluster, started by `docker exec`.

Unlike a training, it ends with the command that has started it: nobody else knows how it goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from flatout.clustering import placing
from flatout.clustering.files import Folder, open_folder
from flatout.clustering.placing import Node
from flatout.clustering.running import require_well
from flatout.errors import UsageError
from flatout.nouns.launch import (
    LaunchRequest,
    NodeEvent,
    NodePlace,
    NodesStarted,
    computing,
    rendezvous,
)
from flatout.nouns.units import counted_text
from flatout.system import compose
from flatout.system.guarded import guarded
from flatout.system.nodes import NodeCommand, Nodes, find_script, judged, log_folder


def launch(request: LaunchRequest) -> Generator[NodeEvent]:
    """Starts the script in that many nodes of the cluster that is here, and tells what they print.

    Raises:
        UsageError: script-not-found, no-cluster-here, nodes-not-placed, and what is wrong with the
            nodes; RunFailed: docker-failed, node-failed, launch-too-long.
    """
    script = find_script(request.script)
    folder = open_folder(None)
    nodes = _chosen(placing.computing_nodes(require_well(folder)), request.nodes)
    inside = _places_inside(folder, script, nodes)
    has_gpus = len(placing.with_gpus(nodes)) == len(nodes)
    told = rendezvous(request.framework, [_place(one) for one in nodes])
    shares = [_share(request, one, has_gpus=has_gpus) for one in nodes]
    commands = [
        NodeCommand(
            argv=compose.exec_words(
                node.container.id,
                guarded("python3", [path, *request.arguments]),
                {**share, **own},
                is_fed=True,
            ),
            is_elsewhere=True,
        )
        for node, path, share, own in zip(nodes, inside, shares, told, strict=True)
    ]
    logs = log_folder(request, script)
    with Nodes(commands, logs) as running:
        yield NodesStarted(
            num_nodes=len(nodes),
            folder=str(logs),
            gpus=(),
            threads=min(one.num_cpus for one in nodes),
            hosts=tuple(one.name for one in nodes),
        )
        yield from judged(request, running.follow(request.limit_s), logs)


def _chosen(nodes: Sequence[Node], wanted: int) -> list[Node]:
    """So many of the nodes: with a GPU each if there are enough of these, else all on their CPUs.

    Raises:
        UsageError: nodes-not-placed.
    """
    if wanted > len(nodes):
        raise UsageError(
            "nodes-not-placed",
            f"the cluster has {counted_text(len(nodes), 'worker node')}; the script needs "
            f"{wanted}.",
            because="each node of the script takes one of them",
            fix=f"flatout cluster scale {wanted}; or --nodes {len(nodes)}",
        )
    gpus = placing.with_gpus(nodes)
    return list(gpus if len(gpus) >= wanted else nodes)[:wanted]


def _place(node: Node) -> NodePlace:
    first, second = node.report.free_ports[:2]
    return NodePlace(node.address, (first, second))


def _share(request: LaunchRequest, node: Node, *, has_gpus: bool) -> dict[str, str]:
    """What a node is told about computing; which GPU is its own, its container knows."""
    told = computing(request.framework, 0 if has_gpus else None, node.num_cpus)
    return {name: value for name, value in told.items() if not (has_gpus and "CUDA" in name)}


def _places_inside(folder: Folder, script: Path, nodes: Sequence[Node]) -> list[str]:
    """The script as each node sees it: on a folder that all share, or else copied into each."""
    inside = folder.inside(script)
    if inside is not None:
        return [inside] * len(nodes)
    return [compose.put_program(one.container.id, script) for one in nodes]
