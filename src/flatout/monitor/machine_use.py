"""A run's samples of the machine, in a few numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from flatout.schema.machine_sample import HARMLESS_THROTTLES, GpuSample, MachineSample
from flatout.schema.machine_use import GpuUse, MachineUse

NumberT = TypeVar("NumberT", int, float)

# A reason to throttle that is rarer did not matter.
_LEAST_SHARE = 0.05
# A sample stands for the time to the next, but not for longer.
_LONGEST_S = 60.0
_SHORTEST_S = 1e-3


def machine_use(samples: Iterable[MachineSample]) -> MachineUse | None:
    """What the samples of a run show; None without any."""
    taken = list(samples)
    if not taken:
        return None
    weights = _weights([sample.at for sample in taken])
    by_index: dict[int, list[tuple[GpuSample, float]]] = {}
    for sample, weight in zip(taken, weights, strict=True):
        for gpu in sample.gpus:
            by_index.setdefault(gpu.index, []).append((gpu, weight))
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
        utilization=_median([host.utilization for host in hosts], weights),
        memory_bytes=hosts[-1].memory_bytes,
        used_bytes=max(used, default=None),
    )


def _weights(times: Sequence[float]) -> list[float]:
    """For how long each sample stands: in a long run they are rarer than at its beginning."""
    spans = [after - at for at, after in zip(times, times[1:], strict=False)]
    # Not for a pause, such as between a stop and a resume.
    weights = [min(_LONGEST_S, max(_SHORTEST_S, span)) for span in spans]
    # The last one stands for as long as the one before.
    return [*weights, weights[-1] if weights else 1.0]


def _gpu_use(weighted: Sequence[tuple[GpuSample, float]]) -> GpuUse:
    samples = [gpu for gpu, _ in weighted]
    weights = [weight for _, weight in weighted]
    listed = [gpu.processes for gpu in samples if gpu.processes is not None]
    others = [one for one in map(others_bytes, samples) if one is not None]
    throttled_s: dict[str, float] = {}
    for gpu, weight in weighted:
        for reason in gpu.throttle_reasons or ():
            throttled_s[reason] = throttled_s.get(reason, 0.0) + weight
    return GpuUse(
        index=samples[-1].index,
        name=samples[-1].name,
        is_used=any(one.is_own for processes in listed for one in processes) if listed else None,
        utilization=_median([gpu.utilization for gpu in samples], weights),
        memory_bytes=_highest([gpu.memory_bytes for gpu in samples]),
        used_bytes=_highest([gpu.used_bytes for gpu in samples]),
        others_bytes=max(others, default=None),
        temperature_c=_highest([gpu.temperature_c for gpu in samples]),
        power_w=_median([gpu.power_w for gpu in samples], weights),
        throttle_reasons=tuple(
            reason
            for reason, seconds in throttled_s.items()
            if reason not in HARMLESS_THROTTLES and seconds >= _LEAST_SHARE * sum(weights)
        ),
    )


def others_bytes(gpu: GpuSample) -> int | None:
    """A GPU's memory that other programs than the run hold; None where it is not reported."""
    if gpu.processes is None or any(one.used_bytes is None for one in gpu.processes):
        return None
    return sum(one.used_bytes or 0 for one in gpu.processes if not one.is_own)


def _median(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The value that half of the time was below; between two, their mean."""
    known = sorted(
        (value, weight)
        for value, weight in zip(values, weights, strict=True)
        if value is not None and weight > 0
    )
    half, passed = sum(weight for _, weight in known) / 2, 0.0
    for place, (value, weight) in enumerate(known):
        passed += weight
        if passed == half:
            return (value + known[place + 1][0]) / 2
        if passed > half:
            return value
    return None


def _highest(values: Sequence[NumberT | None]) -> NumberT | None:
    return max((value for value in values if value is not None), default=None)
