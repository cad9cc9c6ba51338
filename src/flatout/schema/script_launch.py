"""A user's own script on several nodes: the request, and the settings of each node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from flatout.schema.finding import Finding, option_without_effect
from flatout.schema.predict_protocol import Answer, Broken

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


class NodesStarted(Answer, frozen=True, kw_only=True, tag="nodesstarted"):
    """All nodes run. gpus: the GPU of each; none where they compute on the CPU.

    threads: that each may use. hosts: where each runs; none if all run here.
    """

    num_nodes: int
    folder: str
    gpus: tuple[int, ...]
    threads: int
    hosts: tuple[str, ...] = ()


class NodeSaid(Answer, frozen=True, kw_only=True, tag="nodesaid"):
    """A line that a node has printed, to either of its outputs."""

    node: int
    text: str


class NodeEnded(Answer, frozen=True, kw_only=True, tag="nodeended"):
    """A node has ended. is_ours: it was ended because another one had failed."""

    node: int
    exit_code: int
    log: str
    is_ours: bool = False


NodeEvent = NodesStarted | NodeSaid | NodeEnded
AnyNodeAnswer = NodeEvent | Broken


class NodePlace(msgspec.Struct, frozen=True):
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


def rendezvous(framework: LaunchFramework, places: Sequence[NodePlace]) -> list[dict[str, str]]:
    """The variables by which the nodes find each other, for each of them.

    Source:
        torch: https://docs.pytorch.org/docs/stable/distributed.html (environment variable
            initialization), and torchrun's names for nodes.
        tensorflow: https://www.tensorflow.org/guide/distributed_training (TF_CONFIG).
        paddle: `python/paddle/distributed/parallel.py` of PaddlePaddle (init_parallel_env).
    """
    return {"torch": _torch, "tensorflow": _tensorflow, "paddle": _paddle}[framework](places)


def _torch(places: Sequence[NodePlace]) -> list[dict[str, str]]:
    return [
        {
            "MASTER_ADDR": places[0].host, "MASTER_PORT": str(places[0].ports[0]),
            "NNODES": str(len(places)), "NODE_RANK": str(node), "GROUP_RANK": str(node),
            "WORLD_SIZE": str(len(places)), "RANK": str(node),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        }
        for node in range(len(places))
    ]  # fmt: skip


def _tensorflow(places: Sequence[NodePlace]) -> list[dict[str, str]]:
    workers = [place.address for place in places]
    return [
        {
            "TF_CONFIG": msgspec.json.encode(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": node}}
            ).decode()
        }
        for node in range(len(workers))
    ]


def _paddle(places: Sequence[NodePlace]) -> list[dict[str, str]]:
    first, count = places[0], str(len(places))
    return [
        {
            "PADDLE_MASTER": first.address,
            "MASTER_ADDR": first.host, "MASTER_PORT": str(first.ports[0]),
            "PADDLE_TRAINERS_NUM": count, "PADDLE_TRAINER_ID": str(node),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(place.other_address for place in places),
            "PADDLE_CURRENT_ENDPOINT": place.other_address, "PADDLE_RANK_IN_NODE": "0",
            "PADDLE_LOCAL_SIZE": "1", "PADDLE_GLOBAL_SIZE": count, "PADDLE_LOCAL_RANK": "0",
            "PADDLE_GLOBAL_RANK": str(node), "PADDLE_NNODES": count,
        }
        for node, place in enumerate(places)
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
