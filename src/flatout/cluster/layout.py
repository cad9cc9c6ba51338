"""What a cluster gets of a machine: how many workers, which of them a GPU, and how much of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from flatout.errors import UsageError
from flatout.nouns.cluster import ClusterRequest, GpuForm, Share
from flatout.nouns.machine import Machine
from flatout.nouns.surroundings import ContainerEngine
from flatout.nouns.units import bytes_text, counted_text

# Folders of this machine that all nodes see, by their settings, and where the nodes have them.
SHARED_FOLDERS: Mapping[str, str] = MappingProxyType({
    "CLUSTER_RUNS": "/flatout/runs", "CLUSTER_DATA": "/data",
})  # fmt: skip

_MIB = 2**20
_GIB = 2**30
# Ray's head with its dashboard takes about 700 MiB, a worker's raylet with its agents 400.
_HEAD_BYTES = 2 * _GIB
_LEAST_WORKER_BYTES = _GIB
# What is left to the machine itself and to everything else that runs on it.
_FREE_SHARE = 0.2
# Loaders, NCCL and Ray's object store hand data over in it; Docker's default is 64 MB.
_SHARED_SHARE = 0.3


def engine_of(machine: Machine) -> ContainerEngine | None:
    """Docker, as it was read; None where there is none."""
    return next((one for one in machine.engines or () if one.name.startswith("docker")), None)


def gpu_form(machine: Machine) -> tuple[GpuForm, str]:
    """How containers of this machine get a GPU, and why it is that way."""
    engine = engine_of(machine)
    if not machine.gpus:
        return "none", "there is no GPU here"
    if engine is None or not engine.is_running:
        return "none", "Docker does not answer, so nobody knows whether it has the GPU"
    if engine.name == "docker-desktop":
        return "desktop", "Docker Desktop lends it"
    if "nvidia" in (engine.runtimes or ()):
        return "runtime", "NVIDIA's runtime lends it"
    if engine.cdi_devices:
        return "cdi", "a CDI specification describes it"
    return "none", "Docker knows neither NVIDIA's runtime nor a CDI specification"


def is_by_variable(machine: Machine, form: GpuForm) -> bool:
    """Whether every container sees all GPUs, so that only a variable can tell which is whose.

    Under WSL the GPUs are one device, /dev/dxg.
    """
    if form in ("none", "desktop"):
        return form == "desktop"
    devices = (engine.cdi_devices if (engine := engine_of(machine)) else None) or ()
    only_all = form == "cdi" and "nvidia.com/gpu=0" not in devices
    return machine.host.wsl == 2 or only_all


def chosen_gpus(request: ClusterRequest, machine: Machine) -> tuple[tuple[int, ...], str]:
    """The GPU of each worker that gets one, and what is said about it.

    Two ranks on one GPU are refused by NCCL, so no two workers are given the same, unless that is
    asked for.

    Raises:
        UsageError: not-a-number-of-gpus, no-gpu-in-containers, gpu-would-be-shared.
    """
    form, why = gpu_form(machine)
    here = tuple(gpu.index for gpu in machine.gpus) if form != "none" else ()
    if request.gpus == "none":
        return (), "no GPU, as was asked for"
    if request.gpus == "all" and request.is_gpu_shared and here:
        return _shared(here, request.workers)
    if request.gpus == "all":
        given = here[: request.workers]
        if not given:
            return (), f"no GPU in containers: {why}"
        left = request.workers - len(given)
        shared = f"; {left} more without one, as NCCL refuses two ranks on one GPU" if left else ""
        return given, f"a GPU for {counted_text(len(given), 'worker')}{shared}"
    if not re.fullmatch("[0-9]{1,3}", request.gpus):
        raise UsageError(
            "not-a-number-of-gpus",
            f"`--gpus {request.gpus}` is neither `all` nor `none` nor a number.",
            fix="use one of these",
        )
    wanted = int(request.gpus)
    if wanted == 0:
        return (), "no GPU, as was asked for"
    if wanted > request.workers or not here:
        raise UsageError(
            "no-gpu-in-containers",
            f"{counted_text(wanted, 'GPU')} for {counted_text(request.workers, 'worker')}."
            if here
            else f"{counted_text(wanted, 'worker')} cannot have a GPU: containers have none here.",
            because="a worker trains on one GPU" if here else why,
            fix=f"--workers {wanted}" if here else "flatout setup --docker; or --gpus none",
        )
    if request.is_gpu_shared:
        return _shared(here, wanted)
    if wanted > len(here):
        raise UsageError(
            "gpu-would-be-shared",
            f"{counted_text(wanted, 'worker')} would share {counted_text(len(here), 'GPU')}.",
            because="NCCL cannot train over workers that share a GPU; other work can share one",
            fix=f"--gpus {len(here)} for training; --share-gpu for other work",
        )
    return here[:wanted], f"a GPU for {counted_text(wanted, 'worker')}, as asked for"


def _shared(here: tuple[int, ...], num_workers: int) -> tuple[tuple[int, ...], str]:
    """GPUs in turn, and what is said about it."""
    given = tuple(here[number % len(here)] for number in range(num_workers))
    return given, (
        f"{counted_text(num_workers, 'worker')} and the head share "
        f"{counted_text(len(set(given)), 'GPU')}, as asked for: not for training with NCCL"
    )


def share_of(machine: Machine, num_workers: int) -> Share:
    """What each container may take, so that all together leave the machine room.

    Raises:
        UsageError: cluster-does-not-fit.
    """
    memory = machine.memory
    total = min(one for one in (memory.limit_bytes, memory.total_bytes, 2**60) if one)
    if total == 2**60:
        # Nobody knows; what a small machine could give is asked for.
        total = 8 * _GIB
    head = min(_HEAD_BYTES, total // 5)
    each = int(total * (1 - _FREE_SHARE) - head) // num_workers
    if each < _LEAST_WORKER_BYTES:
        fitting = int(total * (1 - _FREE_SHARE) - head) // _LEAST_WORKER_BYTES
        raise UsageError(
            "cluster-does-not-fit",
            f"{counted_text(num_workers, 'worker')} would have {bytes_text(each)} of memory each.",
            because=f"this machine has {bytes_text(total)}, and a worker needs 1 GiB for itself",
            fix=f"--workers {fitting}" if fitting > 0 else "use a machine with more memory",
        )
    cpus = machine.cpu.num_threads or 1
    each -= each % (256 * _MIB)
    shared = int(each * _SHARED_SHARE)
    return Share(
        cpus=max(1, cpus // num_workers),
        memory_bytes=each,
        shared_bytes=shared - shared % (64 * _MIB),
        head_bytes=head - head % (64 * _MIB),
    )


def project_name(folder_names: tuple[str, ...]) -> str:
    """A name that Compose takes, from the folder's, or its parent's where that is `cluster`."""
    words = [name for name in folder_names if name not in ("", "cluster")]
    text = re.sub("[^a-z0-9]+", "-", (words[-1] if words else "").lower()).strip("-")[:40]
    return f"flatout-{text}" if text else "flatout"
