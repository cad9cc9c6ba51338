"""Memory that grows without end, and memory that was moved out of the GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median

from flatout.monitor.gpu_alarms import MachineHistory
from flatout.monitor.run_state import RunState
from flatout.monitor.trend import last_points, steady_growth
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine_sample import GpuSample, HostSample
from flatout.schema.units import bytes_text, percent_text, rate_text, seconds_text

_WINDOW_S = 20.0
_START_S = 10.0
_LEAST_GROWTH_BYTES = 64 * 2**20
# In its first epoch, a training fills its caches: growth is a leak only if it is about to fill all.
_LATER_LIMIT_S = 3600.0
_FIRST_LIMIT_S = 180.0
_FIRST_ROOM = 0.25

_FULL = 0.95
_CLIFF = 0.5
_CLIFF_S = 10.0
_BASELINE_S = 30.0
_FEWEST_RATES = 10
# In a long run, a line comes every 10 s.
_FEWEST_SLOW = 3


def memory_findings(
    state: RunState,
    machine: MachineHistory,
    gpus: Mapping[int, list[GpuSample]],
    *,
    can_spill: bool,
) -> Iterator[Finding]:
    """What is wrong with the memory of a run.

    gpus: readings of those that it uses, newest first.
    can_spill: the driver moves memory out of a full GPU rather than refuse it.
    """
    host_room = _host_room(state, machine.samples[-1].host) if machine.samples else None
    if host_room is not None:
        growth = _leak(state, state.memory, state.peak_memory, host_room)
        if growth is not None:
            yield _host_leak(state, growth, host_room[0])
    gpu = _fullest(gpus)
    if gpu is None or gpu.used_bytes is None or not gpu.memory_bytes:
        return
    room = (max(0, gpu.memory_bytes - gpu.used_bytes), gpu.memory_bytes)
    growth = _leak(state, state.tensors, state.peak_tensors, room)
    if growth is not None:
        yield _gpu_leak(state, growth, room[0])
    if can_spill:
        spilled = _spilled(state, gpu, gpu.used_bytes / gpu.memory_bytes)
        if spilled is not None:
            yield spilled


def _host_room(state: RunState, host: HostSample) -> tuple[int, int] | None:
    """The free memory for the run's processes and the whole of it; None if unknown.

    In a container with a limit, the computer's memory says nothing.
    """
    if host.available_bytes is None or not host.memory_bytes:
        return None
    worker = state.sample.worker
    left = worker.left_bytes if worker is not None else None
    if worker is None or left is None or left >= host.available_bytes:
        return host.available_bytes, host.memory_bytes
    return left, left + (worker.memory_bytes or 0)


def _fullest(gpus: Mapping[int, list[GpuSample]]) -> GpuSample | None:
    """The GPU with the largest share of its memory in use."""
    newest = [readings[0] for readings in gpus.values()]
    known = [gpu for gpu in newest if gpu.used_bytes is not None and gpu.memory_bytes]
    return max(known, key=lambda gpu: (gpu.used_bytes or 0) / (gpu.memory_bytes or 1), default=None)


def _leak(
    state: RunState,
    points: deque[tuple[float, float]],
    peak: float,
    room: tuple[int, int],
) -> float | None:
    """Bytes per second by which memory grows without end; None where it does not."""
    window = last_points(list(points), _WINDOW_S)
    if not window or state.first_progress_at is None:
        return None
    if window[0][0] < state.first_progress_at + _START_S:
        return None
    growth = steady_growth(window)
    added = window[-1][1] - window[0][1]
    older = max((value for at, value in points if at < window[0][0]), default=0.0)
    if growth is None or added < _LEAST_GROWTH_BYTES:
        return None
    if window[-1][1] < max(peak, older) + _LEAST_GROWTH_BYTES:
        # It has been there before: it comes and goes.
        return None
    free, total = room
    left_s = free / growth
    is_later = state.num_epochs > 0 and window[0][0] > state.first_epoch_ended_at
    if is_later:
        return growth if left_s < _LATER_LIMIT_S else None
    return growth if left_s < _FIRST_LIMIT_S and free / total < _FIRST_ROOM else None


def _host_leak(state: RunState, growth: float, free: int) -> Finding:
    newest = state.memory[-1][1]
    return Finding(
        rule="memory-leak",
        severity="warning",
        problem=f"the memory of the run's processes grows without end: "
        f"{bytes_text(growth * 60)} per minute.",
        because="something is kept for each batch: outputs or losses in a list, samples in a data "
        "set, a cache without a limit",
        evidence=(
            f"{bytes_text(newest)} now, growing evenly",
            f"{bytes_text(free)} of memory are left: full in {seconds_text(free / growth)}",
        ),
        certainty="likely",
        fixes=(
            Fix(text="keep numbers rather than tensors (`loss.item()`, `.detach()`), and clear "
                     "lists after each epoch"),
            Fix(text="find it: python -m tracemalloc, or memray run"),
        ),
    )  # fmt: skip


def _gpu_leak(state: RunState, growth: float, free: int) -> Finding:
    newest = state.tensors[-1][1]
    return Finding(
        rule="gpu-memory-leak",
        severity="warning",
        problem=f"tensors on the GPU grow without end: {bytes_text(growth * 60)} per minute.",
        because="tensors of every step are kept, often with the graph that computed them",
        evidence=(
            f"tensors hold {bytes_text(newest)} now, growing evenly",
            f"{bytes_text(free)} of the GPU's memory are left: full in "
            f"{seconds_text(free / growth)}",
        ),
        certainty="likely",
        fixes=(
            Fix(text="sum up `loss.item()` or `loss.detach()`, not `loss`"),
            Fix(text="see what holds memory at the peak: flatout profile EXPERIMENT"),
        ),
    )


def _spilled(state: RunState, gpu: GpuSample, share: float) -> Finding | None:
    """Full memory and a speed that has fallen off a cliff."""
    if share < _FULL or not state.rates:
        return None
    began, newest = state.rates[0][0], state.rates[-1][0]
    count = max(_FEWEST_SLOW, sum(at > newest - _CLIFF_S for at, _ in state.rates))
    rates = [rate for _, rate in state.rates]
    before, now = rates[:-count], rates[-count:]
    if len(before) < _FEWEST_RATES or state.rates[-count][0] - began < _BASELINE_S:
        return None
    usual = median(before)
    if max(now[1:]) > _CLIFF * usual:
        return None
    unit = state.started.unit if state.started else "samples"
    return Finding(
        rule="gpu-memory-spilled",
        severity="warning",
        problem="the GPU's memory is full, and training has become much slower.",
        because="Windows' driver moves memory that does not fit to system memory, which is many "
        "times slower, rather than report that memory has run out",
        evidence=(
            f"{percent_text(share, 0)} of the memory of GPU {gpu.index} are in use",
            f"{rate_text(median(now), unit)}; before, {rate_text(usual, unit)}",
        ),
        certainty="likely",
        fixes=(
            Fix(text="end other programs that use the GPU, such as a browser"),
            Fix(text="use a smaller micro-batch: --use micro_batch_size=N"),
        ),
    )
