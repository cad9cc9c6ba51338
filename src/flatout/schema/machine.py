"""The facts of the machine. Unknown is None, and `unread` says why."""

from __future__ import annotations

import msgspec

from flatout.schema.driver import CudaLibrary, CudaStart, InstalledToolkit, KernelModule
from flatout.schema.environment_facts import (
    ContainerEngine,
    Disk,
    Environment,
    InstalledPackages,
    Network,
    ProcessLimits,
)
from flatout.schema.framework import Framework
from flatout.schema.wsl import Windows, Wsl

# How `unread` says that neither of the two was found, as opposed to what they said themselves.
NO_NVML = "NVML: there is no "
NO_SMI = "nvidia-smi: not found"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The operating system.

    os: linux, windows or macos. release: of the kernel, or Windows' build.
    wsl: 1 or 2 under WSL, else None. container: docker, podman, kubernetes ... inside one, else
    None. Both are None for "is not", so they need no reason.
    python: version of the Python that flatout runs on.
    glibc: version of the C library, None where it is another one.
    """

    os: str | None = None
    release: str | None = None
    distribution: str | None = None
    wsl: int | None = None
    container: str | None = None
    python: str | None = None
    glibc: str | None = None


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """num_cores: physical; num_threads: logical, those this process may use.

    features: instruction sets that matter for training, as the kernel names them (`avx2`,
    `avx512f`, `avx512_bf16`, `amx_tile`).
    """

    name: str | None = None
    num_cores: int | None = None
    num_threads: int | None = None
    features: tuple[str, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """limit_bytes: what a container may use, None where nothing limits it.

    swap_bytes: all of it, free or not. num_killed: processes of this group (cgroup) that the kernel
    has killed for memory since the group was made.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    swap_bytes: int | None = None
    num_killed: int | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML or nvidia-smi reports it; compute_capability like "8.6".

    index counts in PCI bus order: the device `cuda:index` under CUDA_DEVICE_ORDER=PCI_BUS_ID.
    driver_model: Windows' "WDDM", "TCC" or "MCDM". is_mig_on: the card is cut into MIG instances,
    num_mig_instances of them; None if MIG is off or unknown.
    has_display: a screen is lit by it. num_processes: that compute on it now.
    throttle_reasons: why its clocks are not at their highest: "idle", "power-cap",
    "thermal-slowdown" ...
    """

    index: int
    name: str | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    compute_capability: str | None = None
    pci_bus_id: str | None = None
    uuid: str | None = None
    driver_model: str | None = None
    is_mig_on: bool | None = None
    num_mig_instances: int | None = None
    is_persistence_on: bool | None = None
    has_display: bool | None = None
    num_processes: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The facts at one moment.

    driver: version of NVIDIA's driver; under WSL Windows' number.
    cuda: the newest CUDA this driver can run, like "13.0".
    python: the interpreter whose frameworks were read.
    variables: environment variables that CUDA and frameworks obey, as far as they are set.
    unread: maps a fact's path (`driver`, `cpu.num_cores`, `gpus.0.free_bytes`) to why it is None.

    The families from `windows` on are None if not probed, or not applicable: a training reads no
    more than it needs, the doctor asks for all of them, and for `cuda_start` only with --deep.
    """

    read_at: str | None = None
    host: Host = Host()
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    python: str | None = None
    frameworks: tuple[Framework, ...] = ()
    windows: Windows | None = None
    wsl: Wsl | None = None
    module: KernelModule | None = None
    libraries: tuple[CudaLibrary, ...] | None = None
    toolkits: tuple[InstalledToolkit, ...] | None = None
    disks: tuple[Disk, ...] | None = None
    environments: tuple[Environment, ...] | None = None
    engines: tuple[ContainerEngine, ...] | None = None
    network: Network | None = None
    limits: ProcessLimits | None = None
    packages: InstalledPackages | None = None
    variables: dict[str, str] | None = None
    cuda_start: CudaStart | None = None
    unread: dict[str, str] = {}

    def framework(self, name: str) -> Framework | None:
        """The framework of that name in the environment that was read, or None."""
        return next((framework for framework in self.frameworks if framework.name == name), None)
