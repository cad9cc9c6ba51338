"""A user's own script on several nodes: the request, and the settings of each node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from flatout.schema.finding import Finding, option_without_effect
from flatout.schema.predict_protocol import ProcessFailed, Reply

LaunchFramework = Literal["tensorflow", "paddle", "torch"]


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout launch` as data.

    limit_s: all nodes must have ended by then; None waits. logs: a folder for what they print.
    env: name of an environment of `flatout setup`, in place of `python`.
    """

    framework: LaunchFramework
    nodes: int
    script: str
    arguments: tuple[str, ...] = ()
    on: Literal["local", "ray", "cluster"] = "local"
    limit_s: float | None = None
    logs: str | None = None
    python: str | None = None
    env: str | None = None

    def warnings(self) -> Iterator[Finding]:
        """Warns about options that have no effect."""
        for option, value in (("--python", self.python), ("--env", self.env)):
            if self.on == "cluster" and value is not None:
                yield option_without_effect(
                    option,
                    "the Python of the cluster's image runs the script",
                    "add packages to the image: flatout cluster init --with",
                )


class NodesStarted(Reply, frozen=True, kw_only=True, tag="nodesstarted"):
    """All nodes run. gpus: the GPU of each; none where they compute on the CPU.

    threads: that each may use. hosts: where each runs; none if all run here.
    """

    num_nodes: int
    folder: str
    gpus: tuple[int, ...]
    threads: int
    hosts: tuple[str, ...] = ()


class NodeSaid(Reply, frozen=True, kw_only=True, tag="nodesaid"):
    """A line that a node has printed, to either of its outputs."""

    node: int
    text: str


class NodeEnded(Reply, frozen=True, kw_only=True, tag="nodeended"):
    """A node has ended. is_ours: it was ended because another one had failed."""

    node: int
    exit_code: int
    log: str
    is_ours: bool = False


NodeEvent = NodesStarted | NodeSaid | NodeEnded
AnyNodeReply = NodeEvent | ProcessFailed


class NodeAddresses(msgspec.Struct, frozen=True):
    """The address of a node for the others. ports: two that no one else listens on."""

    host: str
    ports: tuple[int, int]

    @property
    def address(self) -> str:
        """The first."""
        return f"{self.host}:{self.ports[0]}"

    @property
    def other_address(self) -> str:
        """The second, for what needs a port next to its rendezvous."""
        return f"{self.host}:{self.ports[1]}"


def rendezvous(framework: LaunchFramework, nodes: Sequence[NodeAddresses]) -> list[dict[str, str]]:
    """The variables by which the nodes find each other, for each of them.

    Source:
        torch: https://docs.pytorch.org/docs/stable/distributed.html (environment variable
            initialization), and torchrun's names for nodes.
        tensorflow: https://www.tensorflow.org/guide/distributed_training (TF_CONFIG).
        paddle: `python/paddle/distributed/parallel.py` of PaddlePaddle (init_parallel_env).
    """
    return {"torch": _torch, "tensorflow": _tensorflow, "paddle": _paddle}[framework](nodes)


def _torch(nodes: Sequence[NodeAddresses]) -> list[dict[str, str]]:
    return [
        {
            "MASTER_ADDR": nodes[0].host, "MASTER_PORT": str(nodes[0].ports[0]),
            "NNODES": str(len(nodes)), "NODE_RANK": str(node), "GROUP_RANK": str(node),
            "WORLD_SIZE": str(len(nodes)), "RANK": str(node),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        }
        for node in range(len(nodes))
    ]  # fmt: skip


def _tensorflow(nodes: Sequence[NodeAddresses]) -> list[dict[str, str]]:
    workers = [node.address for node in nodes]
    return [
        {
            "TF_CONFIG": msgspec.json.encode(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": node}}
            ).decode()
        }
        for node in range(len(workers))
    ]


def _paddle(nodes: Sequence[NodeAddresses]) -> list[dict[str, str]]:
    first, count = nodes[0], str(len(nodes))
    return [
        {
            "PADDLE_MASTER": first.address,
            "MASTER_ADDR": first.host, "MASTER_PORT": str(first.ports[0]),
            "PADDLE_TRAINERS_NUM": count, "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(peer.other_address for peer in nodes),
            "PADDLE_CURRENT_ENDPOINT": node.other_address, "PADDLE_RANK_IN_NODE": "0",
            "PADDLE_LOCAL_SIZE": "1", "PADDLE_GLOBAL_SIZE": count, "PADDLE_LOCAL_RANK": "0",
            "PADDLE_GLOBAL_RANK": str(rank), "PADDLE_NNODES": count,
        }
        for rank, node in enumerate(nodes)
    ]  # fmt: skip


def computing(framework: LaunchFramework, gpu: int | None, threads: int) -> dict[str, str]:
    """The variables that give a node its GPU, or none, and its share of the CPU."""
    variables = {"OMP_NUM_THREADS": str(threads)}
    if framework == "tensorflow":
        variables |= {"TF_NUM_INTRAOP_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if gpu is not None:
        variables |= {"CUDA_VISIBLE_DEVICES": str(gpu), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    else:
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
        if framework == "paddle":
            # Else init_parallel_env of a build for CUDA asks for NCCL.
            variables["PADDLE_DISTRI_BACKEND"] = "gloo"
    return variables
