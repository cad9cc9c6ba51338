"""The report of a cluster's node: `python3 -m flatout.cluster.compose.node_report QUESTION`.

Run inside each container before a training; imports neither a framework nor an engine.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import time
from importlib import metadata

import msgspec

from flatout.cluster.model.cluster import SHARED_GPU, NodeReport

_VARIABLES = (
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "RAY_ADDRESS",
    "OMP_NUM_THREADS", SHARED_GPU,
)  # fmt: skip
_CONNECT_LIMIT_S = 2.0


class NodeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The question to a node.

    packages: whose versions. names: to be resolved. places: "name:port" that should answer.
    folders: that it should be able to write into.
    """

    node: str
    packages: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


def report_on(query: NodeQuery) -> NodeReport:
    """The report of this node."""
    return NodeReport(
        # First and last: they enclose whatever takes long.
        began_s=time.time(),
        node=query.node,
        python=platform.python_version(),
        versions={name: _version(name) for name in query.packages},
        shared_bytes=_size("/dev/shm"),
        addresses={name: _address(name) for name in query.names},
        reached={address: _answers(address) for address in query.places},
        interfaces=_interfaces(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        is_root=sys.platform != "win32" and os.getuid() == 0,
        unwritable=tuple(path for path in query.folders if not os.access(path, os.W_OK)),
        num_cpus=_num_cpus(),
        num_gpus=_num_gpus(),
        free_ports=_free_ports(),
        now_s=time.time(),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _size(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _address(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_LIMIT_S):
            return True
    except (OSError, ValueError):
        return False


def _free_ports() -> tuple[int, ...]:
    with socket.socket() as first, socket.socket() as second:
        for listening in (first, second):
            listening.bind(("", 0))
        return first.getsockname()[1], second.getsockname()[1]


def _interfaces() -> tuple[str, ...]:
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return ()


def _num_cpus() -> float:
    """The CPUs that this container's group may use, by cgroup v2 or v1; else all."""
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        try:
            with open(path, encoding="ascii") as file:
                quota, _, period = file.read().strip().partition(" ")
            if quota not in ("max", "-1"):
                return int(quota) / int(period or 100_000)
        except (OSError, ValueError):
            continue
    return float(os.cpu_count() or 1)


def _num_gpus() -> int:
    """The number of the driver's device files; under WSL all GPUs are one."""
    try:
        names = os.listdir("/dev")
    except OSError:
        return 0
    numbered = sum(name.startswith("nvidia") and name[6:].isdigit() for name in names)
    return numbered or int("dxg" in names)


if __name__ == "__main__":
    report = report_on(msgspec.json.decode(sys.argv[1], type=NodeQuery))
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
