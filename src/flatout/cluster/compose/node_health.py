"""Checks that the nodes of a cluster are compatible, from their reports before a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType

from flatout.cluster.model.cluster import LOST, Container, Engine, NodeReport
from flatout.schema.finding import Finding, Fix
from flatout.schema.units import bytes_text, seconds_text

# Rules of the doctor, whose pages explain more.
SHARED_MEMORY = "shm-too-small"
_CLUSTER_HEADS = {"ray": "ray-head-unreachable", "dask": "dask-scheduler-unreachable"}
_HOST_NAMES = "distributed-hostname-resolution"
_INTERFACE = "nccl-socket-interface"
_RAY_PYTHONS = "ray-python-version-mismatch"
_RENDEZVOUS = "rendezvous-unreachable"
_VERSIONS = {
    "ray": "ray-version-mismatch",
    "dask": "dask-version-mismatch",
    "distributed": "dask-version-mismatch",
}
# What must be of one version everywhere, for each engine.
PACKAGES = MappingProxyType({
    "ray": ("flatout", "torch", "ray"),
    "dask": ("flatout", "torch", "dask", "distributed"),
    "torchrun": ("flatout", "torch"),
})  # fmt: skip
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
# Docker's default of 64 MB, and little more.
_LEAST_SHARED_BYTES = 128 * 2**20
# Lines of logs and times of checkpoints no longer follow each other.
_MOST_APART_S = 2.0
_REBUILD = "build one image for all: flatout cluster up"


def judge_nodes(nodes: Sequence[NodeReport], engine: Engine) -> tuple[Finding, ...]:
    """Findings about nodes that would break a training, or mislead its user."""
    judges: tuple[Callable[[Sequence[NodeReport], Engine], Iterator[Finding]], ...] = (
        _versions, _pythons, _clocks, _names, _heads, _shared_memory, _interfaces, _rights,
    )  # fmt: skip
    return tuple(finding for judge in judges for finding in judge(nodes, engine))


def judge_lost(containers: Sequence[Container]) -> tuple[Finding, ...]:
    """Nodes that their engine has dropped, although their containers run."""
    lost = [container.name for container in containers if container.health == LOST]
    if not lost:
        return ()
    return (
        Finding(
            rule="cluster-node-lost",
            severity="error",
            problem=f"Ray no longer lists {', '.join(lost)} as a node, though the container is "
            "running.",
            because="it missed Ray's health checks (disconnected or paused); Ray does not "
            "re-admit nodes",
            fixes=(Fix(text="flatout cluster up"),),
        ),
    )


def _versions(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    for package in PACKAGES[engine]:
        version_of = {node.node: node.versions.get(package) for node in nodes}
        if len(set(version_of.values())) > 1:
            yield Finding(
                rule=_VERSIONS.get(package, "cluster-versions-differ"),
                severity="error",
                problem=f"The nodes have different versions of {package}.",
                because="they can only communicate with the same version",
                evidence=_by_value(version_of),
                fixes=(Fix(text=_REBUILD),),
            )


def _pythons(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    python_of: dict[str, str | None] = {node.node: node.python for node in nodes}
    if len(set(python_of.values())) > 1:
        is_ray = engine == "ray"
        yield Finding(
            rule=_RAY_PYTHONS if is_ray else "cluster-versions-differ",
            severity="error",
            problem="The nodes run different versions of Python.",
            because="functions are sent as bytecode, which differs between Python versions",
            evidence=_by_value(python_of),
            fixes=(Fix(text=_REBUILD),),
        )


def _clocks(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    # A node answers between two looks at the asking clock: so far ahead it is at least, at most.
    # On a busy machine that is far from each other, and says nothing about a clock.
    least = {node.node: node.now_s - node.answered_s for node in nodes}
    most = {node.node: node.began_s - node.asked_s for node in nodes}
    apart_s = max(least.values(), default=0.0) - min(most.values(), default=0.0)
    if apart_s <= _MOST_APART_S:
        return
    ahead = {name: (least[name] + most[name]) / 2 for name in least}
    yield Finding(
        rule="cluster-clocks-apart",
        severity="warning",
        problem=f"The nodes' clocks are {seconds_text(apart_s)} apart, or more.",
        because="timestamps of logs and files no longer show what happened first",
        evidence=tuple(f"{name}: {value:+.1f} s" for name, value in ahead.items()),
        fixes=(Fix(text="synchronize the clock of each machine: wsl --shutdown in PowerShell for "
                        "WSL, timedatectl set-ntp true elsewhere"),),
    )  # fmt: skip


def _names(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    lost = {
        f"{node.node}: {name} {'resolves to itself, ' + address if address else 'has no address'}"
        for node in nodes
        for name, address in node.addresses.items()
        if address is None or address.startswith("127.")
    }
    if lost:
        yield Finding(
            rule=_HOST_NAMES,
            severity="error",
            problem="A node's name resolves to the wrong address, or to none.",
            because="nodes find each other by name on their network",
            evidence=tuple(sorted(lost)),
            fixes=(Fix(text="put all services on one network of compose.yaml, then: flatout "
                            "cluster down, flatout cluster up"),),
        )  # fmt: skip


def _heads(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    away = [
        f"{node.node}: {address} does not answer"
        for node in nodes
        for address, is_reached in node.reached.items()
        # A name without an address was already reported.
        if not is_reached and node.addresses.get(address.partition(":")[0], "")
    ]
    if away:
        yield Finding(
            rule=_CLUSTER_HEADS.get(engine, _RENDEZVOUS),
            severity="error",
            problem="Nodes cannot reach the head.",
            evidence=tuple(away),
            fixes=(Fix(text="find the cause: flatout cluster logs; then: flatout cluster up"),),
        )


def _shared_memory(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    small = [
        f"{node.node}: {bytes_text(node.shared_bytes)}"
        for node in nodes
        if node.shared_bytes is not None and node.shared_bytes <= _LEAST_SHARED_BYTES
    ]
    if small:
        yield Finding(
            rule=SHARED_MEMORY,
            severity="error",
            problem="Shared memory, /dev/shm, is too small.",
            because="data loader workers, NCCL and Ray pass data through it, and are killed when "
            "it is full",
            evidence=tuple(small),
            fixes=(Fix(text="set CLUSTER_SHARED_MEMORY=1024m in .env, then: flatout cluster up"),),
        )


def _interfaces(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    wrong = [
        f"{node.node}: {name}={text}, available: {', '.join(node.interfaces)}"
        for node in nodes
        for name in _INTERFACES
        if (text := node.variables.get(name)) and not _leads_out(text, node.interfaces)
    ]
    if wrong:
        yield Finding(
            rule=_INTERFACE,
            severity="error",
            problem="NCCL or Gloo is set to an interface that reaches no other node.",
            evidence=tuple(wrong),
            fixes=(Fix(text="remove it from compose.yaml, or name an existing interface: eth0"),),
        )


def _leads_out(text: str, interfaces: Sequence[str]) -> bool:
    """Whether a value of NCCL_SOCKET_IFNAME allows an interface other than loopback.

    Names are beginnings, with commas between; `=` before them all means the whole names, `^` all
    but these.
    """
    outer = [name for name in interfaces if name != "lo"]
    is_without, is_whole = text.startswith("^"), text.lstrip("^").startswith("=")
    names = [name for name in text.lstrip("^=").split(",") if name]

    def is_named(interface: str) -> bool:
        return any(interface == name if is_whole else interface.startswith(name) for name in names)

    return any(is_named(exception) != is_without for exception in outer)


def _rights(nodes: Sequence[NodeReport], engine: Engine) -> Iterator[Finding]:
    roots = [node.node for node in nodes if node.is_root]
    if roots:
        yield Finding(
            rule="cluster-runs-as-root",
            severity="warning",
            problem="Programs in the cluster run as root.",
            because="files of runs then belong to root, and a program that escapes its container "
            "is root",
            evidence=tuple(roots),
            fixes=(Fix(text="set CLUSTER_UID and CLUSTER_GID in .env, then: flatout cluster up"),),
        )
    shut = [f"{node.node}: {path}" for node in nodes for path in node.unwritable]
    if shut:
        yield Finding(
            rule="cluster-folder-not-writable",
            severity="error",
            problem="Nodes cannot write to their shared folders.",
            evidence=tuple(shut),
            fixes=(Fix(text="give the folders of CLUSTER_RUNS and CLUSTER_DATA in .env to the "
                            "user of CLUSTER_UID: sudo chown"),),
        )  # fmt: skip


def _by_value(value_of: dict[str, str | None]) -> tuple[str, ...]:
    """ "2.60.0: head, worker-1", the fewest last."""
    values = dict.fromkeys(value_of.values())
    nodes = {value: [node for node, own in value_of.items() if own == value] for value in values}
    ordered = sorted(nodes.items(), key=lambda item: -len(item[1]))
    return tuple(f"{value or 'none'}: {', '.join(names)}" for value, names in ordered)
