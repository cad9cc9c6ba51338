"""The layout of a cluster on a machine: how many workers, their GPUs, memory and CPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from flatout.cluster.model.cluster import ClusterRequest, ContainerLimits, GpuForm
from flatout.errors import UsageError
from flatout.schema.environment_facts import ContainerEngine
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text, counted_text

# Folders of this machine that all nodes see, by their settings, and where the nodes have them.
SHARED_FOLDERS: Mapping[str, str] = MappingProxyType({
    "CLUSTER_RUNS": "/flatout/runs", "CLUSTER_DATA": "/data",
})  # fmt: skip

_MIB = 2**20
_GIB = 2**30
# Ray's head with its dashboard takes about 700 MiB, a worker's raylet with its agents 400.
_HEAD_BYTES = 2 * _GIB
_LEAST_WORKER_BYTES = _GIB
# Reserved for the machine itself and everything else on it.
_FREE_SHARE = 0.2
# Loaders, NCCL and Ray's object store pass data through it; Docker's default is 64 MB.
_SHARED_SHARE = 0.3


def engine_of(machine: Machine) -> ContainerEngine | None:
    """The probed Docker; None if there is none."""
    return next(
        (engine for engine in machine.engines or () if engine.name.startswith("docker")), None
    )


def gpu_form(machine: Machine) -> tuple[GpuForm, str]:
    """The way in which containers on this machine get a GPU, and the reason."""
    engine = engine_of(machine)
    if not machine.gpus:
        return "none", "this machine has no GPU"
    if engine is None or not engine.is_running:
        return "none", "Docker does not answer, so GPU support is unknown"
    if engine.name == "docker-desktop":
        return "desktop", "provided by Docker Desktop"
    if "nvidia" in (engine.runtimes or ()):
        return "runtime", "provided by NVIDIA's runtime"
    if engine.cdi_devices:
        return "cdi", "described by a CDI specification"
    return "none", "Docker has neither NVIDIA's runtime nor a CDI specification configured"


def is_by_variable(machine: Machine, form: GpuForm) -> bool:
    """Whether every container sees all GPUs, so that only a variable assigns them.

    Under WSL the GPUs are one device, /dev/dxg.
    """
    if form in ("none", "desktop"):
        return form == "desktop"
    devices = (engine.cdi_devices if (engine := engine_of(machine)) else None) or ()
    only_all = form == "cdi" and "nvidia.com/gpu=0" not in devices
    return machine.host.wsl == 2 or only_all


def chosen_gpus(request: ClusterRequest, machine: Machine) -> tuple[tuple[int, ...], str]:
    """The GPU of each worker that gets one, and a note about it.

    Two ranks on one GPU are refused by NCCL, so no two workers get the same one, unless requested.

    Raises:
        UsageError: not-a-number-of-gpus, no-gpu-in-containers, gpu-would-be-shared.
    """
    form, why = gpu_form(machine)
    here = tuple(gpu.index for gpu in machine.gpus) if form != "none" else ()
    if request.gpus == "none":
        return (), "no GPU, as requested"
    if request.gpus == "all" and request.is_gpu_shared and here:
        return _shared(here, request.workers)
    if request.gpus == "all":
        given = here[: request.workers]
        if not given:
            return (), f"no GPU in containers: {why}"
        left = request.workers - len(given)
        shared = f"; {left} more without, as NCCL refuses two ranks on one GPU" if left else ""
        return given, f"a GPU for {counted_text(len(given), 'worker')}{shared}"
    if not re.fullmatch("[0-9]{1,3}", request.gpus):
        raise UsageError(
            "not-a-number-of-gpus",
            f"`--gpus {request.gpus}` is not `all`, `none` or a number.",
            fix="use one of these",
        )
    num_gpus = int(request.gpus)
    if num_gpus == 0:
        return (), "no GPU, as requested"
    if num_gpus > request.workers or not here:
        raise UsageError(
            "no-gpu-in-containers",
            f"{counted_text(num_gpus, 'GPU')} for {counted_text(request.workers, 'worker')}."
            if here
            else f"{counted_text(num_gpus, 'worker')} cannot have a GPU: containers have no GPU "
            "access here.",
            because="a worker trains on one GPU" if here else why,
            fix=f"--workers {num_gpus}" if here else "flatout setup --docker; or --gpus none",
        )
    if request.is_gpu_shared:
        return _shared(here, num_gpus)
    if num_gpus > len(here):
        raise UsageError(
            "gpu-would-be-shared",
            f"{counted_text(num_gpus, 'worker')} would share {counted_text(len(here), 'GPU')}.",
            because="NCCL cannot train over workers that share a GPU; other work can share one",
            fix=f"--gpus {len(here)} for training; --share-gpu for other work",
        )
    return here[:num_gpus], f"a GPU for {counted_text(num_gpus, 'worker')}, as requested"


def _shared(here: tuple[int, ...], num_workers: int) -> tuple[tuple[int, ...], str]:
    """GPUs in turn, and a note about it."""
    given = tuple(here[number % len(here)] for number in range(num_workers))
    return given, (
        f"{counted_text(num_workers, 'worker')} and the head share "
        f"{counted_text(len(set(given)), 'GPU')}, as requested: not for training with NCCL"
    )


def share_of(machine: Machine, num_workers: int) -> ContainerLimits:
    """The limits of each container, so that all together leave room for the machine.

    Raises:
        UsageError: cluster-does-not-fit.
    """
    memory = machine.memory
    total = min(
        num_bytes for num_bytes in (memory.limit_bytes, memory.total_bytes, 2**60) if num_bytes
    )
    if total == 2**60:
        # Unknown; assume a small machine.
        total = 8 * _GIB
    head = min(_HEAD_BYTES, total // 5)
    each_bytes = int(total * (1 - _FREE_SHARE) - head) // num_workers
    if each_bytes < _LEAST_WORKER_BYTES:
        fitting = int(total * (1 - _FREE_SHARE) - head) // _LEAST_WORKER_BYTES
        raise UsageError(
            "cluster-does-not-fit",
            f"{counted_text(num_workers, 'worker')} would have {bytes_text(each_bytes)} of memory "
            "each.",
            because=f"this machine has {bytes_text(total)}, and a worker needs 1 GiB for itself",
            fix=f"--workers {fitting}" if fitting > 0 else "use a machine with more memory",
        )
    cpus = machine.cpu.num_threads or 1
    each_bytes -= each_bytes % (256 * _MIB)
    shared = int(each_bytes * _SHARED_SHARE)
    return ContainerLimits(
        cpus=max(1, cpus // num_workers),
        memory_bytes=each_bytes,
        shared_bytes=shared - shared % (64 * _MIB),
        head_bytes=head - head % (64 * _MIB),
    )


def project_name(folder_names: tuple[str, ...]) -> str:
    """A name that Compose takes, from the folder's, or its parent's where that is `cluster`."""
    words = [name for name in folder_names if name not in ("", "cluster")]
    text = re.sub("[^a-z0-9]+", "-", (words[-1] if words else "").lower()).strip("-")[:40]
    return f"flatout-{text}" if text else "flatout"
