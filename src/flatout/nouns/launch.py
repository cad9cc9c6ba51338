"""A person's own script on several nodes at once: what is asked for, and what each node is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

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
    limit_s: float | None = None
    logs: str | None = None
    python: str | None = None
    env: str | None = None


class NodesStarted(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes run. gpus: the GPU of each; none where they compute on the CPU.

    threads: that each may use.
    """

    num_nodes: int
    folder: str
    gpus: tuple[int, ...]
    threads: int


class NodeSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a node has printed, to either of its outputs."""

    node: int
    text: str


class NodeEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A node has ended. is_ours: it was ended because another one had failed."""

    node: int
    exit_code: int
    log: str
    is_ours: bool = False


NodeEvent = NodesStarted | NodeSaid | NodeEnded


def ports_needed(framework: LaunchFramework, num_nodes: int) -> int:
    """How many free ports a rendezvous takes."""
    return {"torch": 1, "tensorflow": num_nodes, "paddle": num_nodes + 1}[framework]


def rendezvous(
    framework: LaunchFramework, num_nodes: int, host: str, ports: Sequence[int]
) -> list[dict[str, str]]:
    """The variables by which the nodes find each other, for each of them.

    Source:
        torch: https://docs.pytorch.org/docs/stable/distributed.html (environment variable
            initialization), and torchrun's names for nodes.
        tensorflow: https://www.tensorflow.org/guide/distributed_training (TF_CONFIG).
        paddle: `python/paddle/distributed/parallel.py` of PaddlePaddle (init_parallel_env).
    """
    if framework == "tensorflow":
        return _tensorflow([f"{host}:{port}" for port in ports])
    if framework == "paddle":
        return _paddle(f"{host}:{ports[0]}", [f"{host}:{port}" for port in ports[1:]])
    return [
        {
            "MASTER_ADDR": host, "MASTER_PORT": str(ports[0]),
            "NNODES": str(num_nodes), "NODE_RANK": str(node), "GROUP_RANK": str(node),
            "WORLD_SIZE": str(num_nodes), "RANK": str(node),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        }
        for node in range(num_nodes)
    ]  # fmt: skip


def _tensorflow(workers: list[str]) -> list[dict[str, str]]:
    return [
        {
            "TF_CONFIG": msgspec.json.encode(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": node}}
            ).decode()
        }
        for node in range(len(workers))
    ]


def _paddle(master: str, endpoints: list[str]) -> list[dict[str, str]]:
    host, _, port = master.rpartition(":")
    return [
        {
            "PADDLE_MASTER": master, "MASTER_ADDR": host, "MASTER_PORT": port,
            "PADDLE_TRAINERS_NUM": str(len(endpoints)), "PADDLE_TRAINER_ID": str(node),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoint, "PADDLE_RANK_IN_NODE": "0",
            "PADDLE_LOCAL_SIZE": "1", "PADDLE_GLOBAL_SIZE": str(len(endpoints)),
            "PADDLE_LOCAL_RANK": "0", "PADDLE_GLOBAL_RANK": str(node),
            "PADDLE_NNODES": str(len(endpoints)),
        }
        for node, endpoint in enumerate(endpoints)
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
