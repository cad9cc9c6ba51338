"""A cluster of containers on one machine: the request, its files, its state."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.finding import Finding

Engine = Literal["ray", "dask", "torchrun"]
# How a container is given a GPU. desktop: Docker Desktop, which brings what is needed. runtime:
# NVIDIA's runtime of the engine. cdi: by a CDI specification. none: no GPU.
GpuForm = Literal["desktop", "runtime", "cdi", "none"]
# The health of a container that its engine has dropped.
LOST = "lost"
# The variable of a service that shares its GPU: the GPU's index.
SHARED_GPU = "FLATOUT_SHARED_GPU"


class ClusterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of `flatout cluster init`.

    workers: containers that compute. gpus: "all", "none" or a number. is_gpu_shared: workers may
    have the same GPU, and the head has one. base_image: of the image; None takes Python's own.
    packages: requirements in addition to the engine's.
    """

    engine: Engine = "ray"
    workers: int = 2
    gpus: str = "all"
    is_gpu_shared: bool = False
    base_image: str | None = None
    packages: tuple[str, ...] = ()


class ContainerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of each container on a machine.

    shared_bytes: of /dev/shm, which is part of its memory.
    """

    cpus: int
    memory_bytes: int
    shared_bytes: int
    head_bytes: int


class ClusterLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a cluster's files are written from.

    name: of the Compose project. gpus: index of the GPU of each worker that has one; the other
    workers have none. is_gpu_shared: the same may be in it several times, and the head has the
    first. is_by_variable: the engine cannot assign single GPUs, so CUDA_VISIBLE_DEVICES of a
    container names its own.
    requirements: lines for pip, with index, where the framework's builds are.
    runs, data: folders of this machine that all containers see. uid, gid: whom files belong to.
    """

    name: str
    engine: Engine
    num_workers: int
    share: ContainerLimits
    base_image: str
    requirements: tuple[str, ...]
    runs: str
    data: str
    index: str | None = None
    gpus: tuple[int, ...] = ()
    gpu_form: GpuForm = "none"
    is_gpu_shared: bool = False
    is_by_variable: bool = False
    uid: int = 1000
    gid: int = 1000


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port of a container that this machine's programs reach. address: of this machine."""

    address: str
    published: int
    target: int

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches it."""
        return self.address.startswith("127.") or self.address in ("::1", "localhost")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service as Compose understands the file, everything filled in.

    num_containers: of it. profiles: it is started only if one of them is requested.
    user: None is the image's own.
    """

    name: str
    user: str | None = None
    is_privileged: bool = False
    is_on_host_network: bool = False
    ports: tuple[Port, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    shared_bytes: int | None = None
    num_containers: int = 1
    profiles: tuple[str, ...] = ()
    is_with_gpu: bool = False
    variables: dict[str, str] = {}


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container as Docker reports it.

    state: "running", "exited" and so on. health: "healthy", "starting", "unhealthy", or None where
    it has no health check; LOST if its engine has dropped it, whatever Docker says.
    ended_at: when it last ended, as Docker writes it. is_out_of_memory: the kernel ended it.
    """

    id: str
    name: str
    service: str
    number: int
    state: str
    health: str | None = None
    exit_code: int | None = None
    ended_at: str | None = None
    is_out_of_memory: bool = False
    address: str | None = None
    ports: tuple[Port, ...] = ()
    cpus: float | None = None
    memory_bytes: int | None = None
    user: str | None = None

    @property
    def is_well(self) -> bool:
        """It runs, and its health check passes."""
        return self.state == "running" and self.health in (None, "healthy")

    @property
    def is_gone(self) -> bool:
        """It does not run any more."""
        return self.state in ("exited", "dead")

    @property
    def has_ended(self) -> bool:
        """It will not become healthy by waiting."""
        return self.is_gone or self.health == "unhealthy"


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a node, collected inside it.

    versions: of packages, by name; None where it has none. began_s, now_s: its clock when it began
    to answer and when it had; asked_s, answered_s: the asking machine's, before and after.
    addresses: of the names of the other nodes; None where a name does not resolve. interfaces: its
    network interfaces' names. reached: whether a port of a node answers, by "name:port".
    free_ports: two that are not in use.
    """

    node: str
    python: str
    versions: dict[str, str | None] = {}
    began_s: float = 0.0
    now_s: float = 0.0
    asked_s: float = 0.0
    answered_s: float = 0.0
    shared_bytes: int | None = None
    addresses: dict[str, str | None] = {}
    reached: dict[str, bool] = {}
    interfaces: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    is_root: bool = False
    unwritable: tuple[str, ...] = ()
    num_cpus: float | None = None
    num_gpus: int = 0
    free_ports: tuple[int, ...] = ()


class Dashboard(msgspec.Struct, frozen=True, kw_only=True):
    """An address to open or to connect to. text: what answers there."""

    text: str
    address: str


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as it is now. unread: why nodes, or the engine, have no report."""

    name: str
    folder: str
    engine: Engine
    containers: tuple[Container, ...]
    nodes: tuple[NodeReport, ...] = ()
    dashboards: tuple[Dashboard, ...] = ()
    findings: tuple[Finding, ...] = ()
    unread: dict[str, str] = {}


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `flatout cluster check`. passed: the checks that passed."""

    findings: tuple[Finding, ...]
    passed: dict[str, str]


class WrittenFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a cluster that were written. notes: what was decided, and why."""

    folder: str
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


class KeptByDown(msgspec.Struct, frozen=True, kw_only=True):
    """The things that `down` leaves. folders: on this machine; volumes: of Docker."""

    folders: tuple[str, ...]
    volumes: tuple[str, ...]
