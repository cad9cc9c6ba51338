"""A user's script on the nodes of a cluster, started by `docker exec`.

Unlike a training, it ends with the command that has started it: no other process supervises it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from flatout.cluster import rank_assignment
from flatout.cluster.compose import docker
from flatout.cluster.containers import require_well
from flatout.cluster.files import Folder, open_folder
from flatout.cluster.node_processes import (
    NodeCommand,
    NodeProcesses,
    find_script,
    judged,
    log_folder,
)
from flatout.cluster.rank_assignment import RankNode
from flatout.errors import UsageError
from flatout.schema.script_launch import (
    LaunchRequest,
    NodeAddresses,
    NodeEvent,
    NodesStarted,
    computing,
    rendezvous,
)
from flatout.schema.units import counted_text
from flatout.system.die_with_parent import guarded


def launch(request: LaunchRequest) -> Generator[NodeEvent]:
    """Starts the script on that many nodes of the local cluster, and yields their output.

    Raises:
        UsageError: script-not-found, no-cluster-here, nodes-not-placed, and what is wrong with the
            nodes; RunFailed: docker-failed, node-failed, launch-too-long.
    """
    script = find_script(request.script)
    folder = open_folder(None)
    nodes = _chosen(rank_assignment.computing_nodes(require_well(folder)), request.nodes)
    inside = _paths_inside(folder, script, nodes)
    has_gpus = len(rank_assignment.with_gpus(nodes)) == len(nodes)
    variables = rendezvous(request.framework, [_addresses(node) for node in nodes])
    shares = [_share(request, node, has_gpus=has_gpus) for node in nodes]
    commands = [
        NodeCommand(
            argv=docker.exec_words(
                node.container.id,
                guarded("python3", [path, *request.arguments]),
                {**share, **own},
                is_fed=True,
            ),
            is_elsewhere=True,
        )
        for node, path, share, own in zip(nodes, inside, shares, variables, strict=True)
    ]
    logs = log_folder(request, script)
    with NodeProcesses(commands, logs) as running:
        yield NodesStarted(
            num_nodes=len(nodes),
            folder=str(logs),
            gpus=(),
            threads=min(node.num_cpus for node in nodes),
            hosts=tuple(node.name for node in nodes),
        )
        yield from judged(request, running.follow(request.limit_s), logs)


def _chosen(nodes: Sequence[RankNode], num_requested: int) -> list[RankNode]:
    """The chosen nodes: with a GPU each if there are enough of these, else all on their CPUs.

    Raises:
        UsageError: nodes-not-placed.
    """
    if num_requested > len(nodes):
        raise UsageError(
            "nodes-not-placed",
            f"the cluster has {counted_text(len(nodes), 'worker node')}; the script needs "
            f"{num_requested}.",
            because="each node of the script uses one worker node",
            fix=f"flatout cluster scale {num_requested}; or --nodes {len(nodes)}",
        )
    gpus = rank_assignment.with_gpus(nodes)
    return list(gpus if len(gpus) >= num_requested else nodes)[:num_requested]


def _addresses(node: RankNode) -> NodeAddresses:
    first, second = node.report.free_ports[:2]
    return NodeAddresses(node.address, (first, second))


def _share(request: LaunchRequest, node: RankNode, *, has_gpus: bool) -> dict[str, str]:
    """The compute settings of a node; its container determines its GPU."""
    variables = computing(request.framework, 0 if has_gpus else None, node.num_cpus)
    return {name: value for name, value in variables.items() if not (has_gpus and "CUDA" in name)}


def _paths_inside(folder: Folder, script: Path, nodes: Sequence[RankNode]) -> list[str]:
    """The script as each node sees it: on a folder that all share, or else copied into each."""
    inside = folder.inside(script)
    if inside is not None:
        return [inside] * len(nodes)
    return [docker.put_program(node.container.id, script) for node in nodes]
