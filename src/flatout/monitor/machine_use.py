"""A run's samples of the machine, in a few numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeVar

from flatout.schema.machine_sample import HARMLESS_THROTTLES, GpuSample, MachineSample
from flatout.schema.machine_use import GpuUse, MachineUse

NumberT = TypeVar("NumberT", int, float)

# A reason to throttle that is rarer did not matter.
_LEAST_SHARE = 0.05


def machine_use(samples: Iterable[MachineSample]) -> MachineUse | None:
    """What the samples of a run show; None without any."""
    taken = list(samples)
    if not taken:
        return None
    by_index: dict[int, list[GpuSample]] = {}
    for sample in taken:
        for gpu in sample.gpus:
            by_index.setdefault(gpu.index, []).append(gpu)
    hosts = [sample.host for sample in taken]
    used = [
        host.memory_bytes - host.available_bytes
        for host in hosts
        if host.memory_bytes is not None and host.available_bytes is not None
    ]
    return MachineUse(
        num_samples=len(taken),
        span_s=taken[-1].at - taken[0].at,
        gpus=tuple(_gpu_use(gpus) for _, gpus in sorted(by_index.items())),
        reason=None if by_index else taken[-1].reason,
        utilization=_median([host.utilization for host in hosts]),
        memory_bytes=hosts[-1].memory_bytes,
        used_bytes=max(used, default=None),
    )


def _gpu_use(samples: Sequence[GpuSample]) -> GpuUse:
    listed = [gpu.processes for gpu in samples if gpu.processes is not None]
    others = [one for one in map(others_bytes, samples) if one is not None]
    counts: dict[str, int] = {}
    for gpu in samples:
        for reason in gpu.throttle_reasons or ():
            counts[reason] = counts.get(reason, 0) + 1
    return GpuUse(
        index=samples[-1].index,
        name=samples[-1].name,
        is_used=any(one.is_own for processes in listed for one in processes) if listed else None,
        utilization=_median([gpu.utilization for gpu in samples]),
        memory_bytes=_highest([gpu.memory_bytes for gpu in samples]),
        used_bytes=_highest([gpu.used_bytes for gpu in samples]),
        others_bytes=max(others, default=None),
        temperature_c=_highest([gpu.temperature_c for gpu in samples]),
        power_w=_median([gpu.power_w for gpu in samples]),
        throttle_reasons=tuple(
            reason
            for reason, count in counts.items()
            if reason not in HARMLESS_THROTTLES and count >= _LEAST_SHARE * len(samples)
        ),
    )


def others_bytes(gpu: GpuSample) -> int | None:
    """A GPU's memory that other programs than the run hold; None where it is not reported."""
    if gpu.processes is None or any(one.used_bytes is None for one in gpu.processes):
        return None
    return sum(one.used_bytes or 0 for one in gpu.processes if not one.is_own)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _highest(values: Sequence[NumberT | None]) -> NumberT | None:
    return max((value for value in values if value is not None), default=None)
