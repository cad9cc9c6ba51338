"""Checks whether this machine can run a cluster, before anything is started."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from flatout.cluster.compose.compose_file import PORTS, RENDEZVOUS_PORT
from flatout.cluster.compose.node_health import SHARED_MEMORY
from flatout.cluster.model.cluster import SHARED_GPU, Port, Service
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text, counted_text

# Rules of the doctor, whose pages explain more.
_DUPLICATE_GPU = "nccl-duplicate-gpu"
_PORT_IN_USE = "port-in-use"
# Inside a container: ports of Ray, and the one of Dask at which it takes programs.
_OF_RAY = tuple(port for _, port in PORTS["ray"])
_OF_DASK = RENDEZVOUS_PORT["dask"]


def judge_files(
    services: Sequence[Service], machine: Machine, busy: Collection[int]
) -> tuple[Finding, ...]:
    """Findings about requirements of a cluster's files that this machine cannot or should not meet.

    Args:
        services: as Compose understands them.
        machine: this one.
        busy: ports that are in use.
    """
    always = [service for service in services if not service.profiles]
    findings = [*_ports(services, busy), *_safety(services), *_room(always, machine)]
    return (*findings, *_gpus(always, machine))


def _ports(services: Sequence[Service], busy: Collection[int]) -> Iterator[Finding]:
    for service in services:
        has_token = service.variables.get("RAY_AUTH_MODE") == "token"
        for port in service.ports:
            address = f"{port.address}:{port.published}"
            yield from _without_token(service, port)
            if not port.is_private:
                yield Finding(
                    rule="cluster-published",
                    severity="warning",
                    problem=f"Port {port.target} of {service.name} is published on {address}.",
                    because="traffic is not encrypted: anyone who intercepts the token can run "
                            "programs in the cluster"
                    if has_token and port.target in _OF_RAY
                    else "anyone who reaches it can run programs in the cluster, without a "
                         "password",
                    fixes=(Fix(text="set CLUSTER_PUBLISHED_ON=127.0.0.1 in .env; from other "
                                    "machines use a tunnel: ssh -L "
                                    f"{port.published}:127.0.0.1:{port.published} "
                                    "this-machine"),),
                )  # fmt: skip
            if port.published in busy:
                yield Finding(
                    rule=_PORT_IN_USE,
                    severity="error",
                    problem=f"Port {port.published}, for {service.name}, is in use.",
                    because="another program on this machine listens on it",
                    fixes=(Fix(text="stop that program, or choose another port in .env"),),
                    confirm=(f"ss -ltnp 'sport = :{port.published}'",),
                )


def _without_token(service: Service, port: Port) -> Iterator[Finding]:
    """A port that runs programs for anyone who reaches it, without a token."""
    if port.target == _OF_DASK:
        engine, fix = "Dask", (
            f"if others use this machine, remove port {port.target} from compose.yaml (flatout "
            "itself does not need it), or use flatout cluster init --engine ray, which requires "
            "a token"
        )  # fmt: skip
    elif port.target in _OF_RAY and service.variables.get("RAY_AUTH_MODE") != "token":
        engine, fix = "Ray", (
            "set CLUSTER_RAY_AUTH=token in .env, then: flatout cluster up; if .env has no such "
            "line: flatout cluster init"
        )  # fmt: skip
    else:
        return
    address = f"{port.address}:{port.published}"
    yield Finding(
        rule="cluster-without-token",
        severity="warning",
        problem=f"The {engine} of {service.name} is published on {address} without a token.",
        because="anyone who reaches it can run programs in the cluster: at least every user and "
        "program of this machine",
        fixes=(Fix(text=fix),),
    )


def _safety(services: Sequence[Service]) -> Iterator[Finding]:
    roots = [service.name for service in services if _is_root(service.user)]
    if roots:
        yield Finding(
            rule="cluster-runs-as-root",
            severity="warning",
            problem="Programs in the cluster would run as root.",
            because="files of runs then belong to root, and a program that escapes its container "
            "is root",
            evidence=tuple(roots),
            fixes=(Fix(text="set CLUSTER_UID and CLUSTER_GID in .env"),),
        )
    open_ones = [
        f"{service.name}: {'privileged' if service.is_privileged else 'network_mode: host'}"
        for service in services
        if service.is_privileged or service.is_on_host_network
    ]
    if open_ones:
        yield Finding(
            rule="cluster-published",
            severity="warning",
            problem="A service is not isolated from this machine.",
            because="on the host's network every Ray port is open to anyone who reaches this "
            "machine; a privileged container has the host's rights",
            evidence=tuple(open_ones),
            fixes=(Fix(text="remove that from compose.yaml"),),
        )


def _is_root(user: str | None) -> bool:
    return user is not None and user.partition(":")[0] in ("0", "root")


def _room(services: Sequence[Service], machine: Machine) -> Iterator[Finding]:
    threads = machine.cpu.num_threads
    greedy = [
        service for service in services if threads and service.cpus and service.cpus > threads
    ]
    if greedy:
        yield Finding(
            rule="cluster-does-not-fit",
            severity="error",
            problem=f"A container may use more CPUs than this machine's {threads}.",
            because="Docker refuses to start such a container",
            evidence=tuple(f"{service.name}: {service.cpus:g}" for service in greedy),
            fixes=(Fix(text=f"set CLUSTER_WORKER_CPUS={threads} or less in .env"),),
        )
    memory = machine.memory
    total = min(
        (num_bytes for num_bytes in (memory.limit_bytes, memory.total_bytes) if num_bytes),
        default=None,
    )
    required = sum(service.num_containers * (service.memory_bytes or 0) for service in services)
    if total is not None and required > total:
        yield Finding(
            rule="cluster-does-not-fit",
            severity="warning",
            problem=f"The containers may use {bytes_text(required)} of memory in total; this "
            f"machine has {bytes_text(total)}.",
            because="if they do, the kernel kills processes",
            evidence=tuple(
                f"{service.num_containers} x {service.name}: {bytes_text(service.memory_bytes)}"
                for service in services
                if service.memory_bytes
            ),
            fixes=(Fix(text="lower CLUSTER_WORKER_MEMORY or CLUSTER_WORKERS in .env"),),
        )
    small = [
        f"{service.name}: {bytes_text(service.shared_bytes)}"
        for service in services
        if service.shared_bytes is not None and service.shared_bytes <= 128 * 2**20
    ]
    if small:
        yield Finding(
            rule=SHARED_MEMORY,
            severity="warning",
            problem="Shared memory, /dev/shm, would be too small.",
            because="data loader workers, NCCL and Ray pass data through it",
            evidence=tuple(small),
            fixes=(Fix(text="set CLUSTER_SHARED_MEMORY=1024m in .env"),),
        )


def _gpus(services: Sequence[Service], machine: Machine) -> Iterator[Finding]:
    shared = [
        service for service in services if service.is_with_gpu and SHARED_GPU in service.variables
    ]
    if shared and machine.gpus:
        yield Finding(
            rule="cluster-shares-gpu",
            severity="note",
            problem=f"{counted_text(sum(s.num_containers for s in shared), 'container')} "
            f"share {counted_text(len({s.variables[SHARED_GPU] for s in shared}), 'GPU')}.",
            because="they share its memory and compute time, and NCCL cannot train across them",
            evidence=tuple(f"{s.name}: GPU {s.variables[SHARED_GPU]}" for s in shared),
            fixes=(Fix(text="to train on it: flatout cluster init --force, without --share-gpu"),),
        )  # fmt: skip
    own = [service for service in services if service.is_with_gpu and service not in shared]
    sharing = [service for service in own if service.num_containers > 1]
    with_gpu = sum(service.num_containers for service in own)
    with_gpu += len({service.variables[SHARED_GPU] for service in shared})
    if not sharing and with_gpu <= len(machine.gpus):
        return
    needs = "needs a GPU" if with_gpu == 1 else "need a GPU each"
    problem = (
        f"{counted_text(with_gpu, 'worker')} {needs}, but this machine has "
        f"{len(machine.gpus) or 'none'}."
        if with_gpu > len(machine.gpus)
        else f"The containers of {' and of '.join(s.name for s in sharing)} share one GPU."
    )
    yield Finding(
        rule=_DUPLICATE_GPU,
        severity="error",
        problem=problem,
        because="NCCL refuses two ranks on one GPU, and all containers of a service have the "
                "same GPU",
        evidence=tuple(f"{s.num_containers} x {s.name}" for s in services if s.is_with_gpu),
        fixes=(Fix(text="use a service with one container per GPU, as flatout cluster init "
                        f"--gpus {len(machine.gpus) or 'none'} writes it; for work other than "
                        "training: --share-gpu"),),
    )  # fmt: skip
