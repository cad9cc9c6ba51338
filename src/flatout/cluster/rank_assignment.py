"""The containers of a cluster that compute, and the number of ranks on each of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.cluster.compose.compose_file import HEADS
from flatout.cluster.model.cluster import SHARED_GPU, ClusterState, Container, NodeReport
from flatout.cluster.node_job import NodePart
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.placement import NodeCapacity, spread, take_gpus
from flatout.schema.worker_command import worker_command
from flatout.system import process_env


class RankNode(msgspec.Struct, frozen=True, kw_only=True):
    """A worker container, and its report."""

    container: Container
    report: NodeReport

    @property
    def name(self) -> str:
        """The name of its service, with its number."""
        return f"{self.container.service}-{self.container.number}"

    @property
    def address(self) -> str:
        """Its address for the others: some frameworks take no name with an underscore."""
        return self.container.address or self.container.name

    @property
    def num_cpus(self) -> int:
        """Whole CPUs that it may use."""
        return max(1, int(self.report.num_cpus or 1))

    @property
    def room(self) -> NodeCapacity:
        """Its capacity for ranks: of GPUs only its own one counts, though it may see all."""
        return NodeCapacity(num_cpus=self.num_cpus, num_gpus=min(1, self.report.num_gpus))


def computing_nodes(now: ClusterState) -> list[RankNode]:
    """The nodes that run and compute, in order, of a cluster that was just looked at.

    Raises:
        UsageError: cluster-not-up, cluster-versions-differ.
    """
    head = HEADS[now.engine]
    running = [
        container for container in now.containers if container.is_well and container.service != head
    ]
    by_name = {report.node: report for report in now.nodes}
    nodes = [
        RankNode(container=container, report=by_name[f"{container.service}-{container.number}"])
        for container in running
        if f"{container.service}-{container.number}" in by_name
    ]
    if not nodes:
        raise UsageError(
            "cluster-not-up",
            f"cluster {now.name} has no running worker.",
            because="; ".join(f"{name}: {why}" for name, why in now.unread.items()) or None,
            fix="flatout cluster up",
        )
    if not all(len(node.report.free_ports) > 1 for node in nodes):
        raise UsageError(
            "cluster-versions-differ",
            "the nodes have an older flatout, which does not report free ports.",
            fix="flatout cluster up puts this one into the image",
        )
    # One that is disconnected from the network still answers: it is queried through the engine.
    return [node for node in nodes if node.container.address] or nodes


def with_gpus(nodes: Sequence[RankNode]) -> list[RankNode]:
    """The nodes that have a GPU for a rank: of several that share one, the first."""
    chosen: list[RankNode] = []
    shared: set[str] = set()
    for node in nodes:
        gpu = node.report.variables.get(SHARED_GPU)
        if node.report.num_gpus and gpu not in shared:
            chosen.append(node)
            shared |= {gpu} if gpu is not None else set()
    return chosen


def is_gpu_shared(now: ClusterState) -> bool:
    """Whether workers have the same GPU, over which NCCL does not train; no rank is on the head."""
    head = f"{HEADS[now.engine]}-1"
    workers = [node for node in now.nodes if node.num_gpus and node.node != head]
    gpus = [node.variables.get(SHARED_GPU) for node in workers]
    return any(gpu is not None and gpus.count(gpu) > 1 for gpu in gpus)


def ranks_of(nodes: Sequence[RankNode], num_ranks: int, device: str) -> list[tuple[RankNode, int]]:
    """The number of ranks on each node: of nodes with a GPU, if any has one that may be used.

    Args:
        nodes: all that compute.
        num_ranks: over all of them; 0 for one each.
        device: as asked for: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    gpus = with_gpus(nodes)
    rooms = [
        node.room if node in gpus else msgspec.structs.replace(node.room, num_gpus=0)
        for node in nodes
    ]
    if take_gpus(rooms, num_ranks, device):
        nodes = gpus
    counts = spread(num_ranks or len(nodes), len(nodes))
    return [(node, count) for node, count in zip(nodes, counts, strict=True) if count]


def parts(placed: Sequence[tuple[RankNode, int]], inside: str, change: Change) -> list[NodePart]:
    """The part of each node: torchrun for its ranks, which meet at the first node.

    Args:
        placed: nodes and their ranks.
        inside: the run's folder as the nodes see it.
        change: what a resume changes.
    """
    first = placed[0][0]
    meet = f"{first.address}:{first.report.free_ports[0]}"
    return [
        NodePart(
            container=node.container.id,
            command=tuple(
                worker_command(
                    "python3", "flatout.engine.launch", inside, "--on", f"torchrun:{count}",
                    "--node", str(number), "--nodes", str(len(placed)), "--meet", meet,
                    change=change,
                )
            ),
            variables={**_threads(node, count), **process_env.ranks_limit()},
        )
        for number, (node, count) in enumerate(placed)
    ]  # fmt: skip


def _threads(node: RankNode, num_ranks: int) -> dict[str, str]:
    """Threads of each of so many ranks on a node, unless compose.yaml says it."""
    if "OMP_NUM_THREADS" in node.report.variables:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, node.num_cpus // num_ranks))}
