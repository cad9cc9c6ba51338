"""Where the time of a program went, from samples that were taken while it ran."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from flatout.schema.machine_sample import GpuSample
from flatout.schema.watched import ProcessTreeSample, TimeOutside, WatchedGpu, WatchSample

Number = TypeVar("Number", int, float)

# Samples are half a second apart at first; then there is one for each 900th of the time so far, so
# that a day of them is as easily read as a minute.
_CLOSEST_S, _USUAL_S, _NUM_RECENT = 0.5, 2.0, 900


def interval_s(elapsed_s: float) -> float:
    """The time from a sample to the next one, so long after the beginning."""
    return max(min(_USUAL_S, max(_CLOSEST_S, elapsed_s)), elapsed_s / _NUM_RECENT)


class Totals:
    """What is kept of all samples, those too that are not written."""

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._host = _Mean()
        self._gpus: dict[int, _Gpu] = {}
        self._program: ProcessTreeSample | None = None
        self._rss_bytes: int | None = None
        self._num_cpus: int | None = None
        self._memory_bytes: int | None = None
        self._gpu_reason: str | None = None

    def take(self, sample: WatchSample) -> None:
        """Adds a sample, which stands for the time since the one before."""
        span_s = 0.0 if self._last_at is None else max(0.0, sample.at - self._last_at)
        self._last_at = sample.at
        self._host.add(sample.host.utilization, span_s)
        self._num_cpus = sample.host.num_cpus or self._num_cpus
        self._memory_bytes = sample.host.memory_bytes or self._memory_bytes
        self._gpu_reason = sample.reason
        for gpu in sample.gpus:
            self._gpus.setdefault(gpu.index, _Gpu()).take(gpu, span_s)
        if sample.program is not None:
            self._program = sample.program
            self._rss_bytes = max(self._rss_bytes or 0, sample.program.rss_bytes)

    def outside(
        self,
        took_s: float,
        *,
        cpu_s: float | None,
        rss_bytes: int | None,
        disk_wait: float | None,
        unread: dict[str, str],
    ) -> TimeOutside:
        """The sums.

        Args:
            took_s: from the program's start to its end.
            cpu_s, rss_bytes: as the operating system counts them at the end; None where it does
                not. It leaves out what the program has not waited for, which samples have seen.
            disk_wait: share of the time.
            unread: why something is None.
        """
        program, reasons = self._program, dict(unread)
        if program is None:
            reasons["disk_read_bytes"] = "it ended before it was looked at"
        elif program.disk_read_bytes is None:
            reasons["disk_read_bytes"] = "the operating system does not report it"
        if self._host.value is None:
            reasons["host_utilization"] = "it ended before the second sample"
        if not self._gpus:
            reasons["gpus"] = self._gpu_reason or "it ended before they were read"
        return TimeOutside(
            took_s=took_s,
            num_cpus=self._num_cpus,
            cpu_s=_largest(cpu_s, None if program is None else program.cpu_s),
            host_utilization=self._host.value,
            gpus=tuple(gpu.use(index) for index, gpu in sorted(self._gpus.items())),
            disk_wait=disk_wait,
            disk_read_bytes=None if program is None else program.disk_read_bytes,
            disk_written_bytes=None if program is None else program.disk_written_bytes,
            rss_bytes=_largest(rss_bytes, self._rss_bytes),
            memory_bytes=self._memory_bytes,
            unread=reasons,
        )


class _Mean:
    """A mean over time; what is unknown does not count."""

    def __init__(self) -> None:
        self._sum = self._span_s = 0.0

    def add(self, value: float | None, span_s: float) -> None:
        if value is not None:
            self._sum += value * span_s
            self._span_s += span_s

    @property
    def value(self) -> float | None:
        return self._sum / self._span_s if self._span_s > 0 else None


class _Gpu:
    """A GPU's part of the totals."""

    def __init__(self) -> None:
        self._utilization = _Mean()
        self._last = GpuSample(index=0)
        self._used_bytes: int | None = None

    def take(self, gpu: GpuSample, span_s: float) -> None:
        self._utilization.add(gpu.utilization, span_s)
        self._used_bytes = _largest(self._used_bytes, gpu.used_bytes)
        self._last = gpu

    def use(self, index: int) -> WatchedGpu:
        return WatchedGpu(
            index=index,
            name=self._last.name,
            utilization=self._utilization.value,
            used_bytes=self._used_bytes,
            memory_bytes=self._last.memory_bytes,
        )


def _largest(*values: Number | None) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def cpus_between(earlier: WatchSample, later: WatchSample) -> float | None:
    """The CPUs that a program kept busy between two samples."""
    if earlier.program is None or later.program is None or later.at <= earlier.at:
        return None
    spent_s = later.program.cpu_s - earlier.program.cpu_s
    return max(0.0, spent_s) / (later.at - earlier.at)


def program_stem(program: Iterable[str]) -> str:
    """What a record is named after: the script, or the module; else the program."""
    words = list(program)
    for before, word in zip(["", *words], words, strict=False):
        if before == "-m":
            return word.rpartition(".")[2]
        if word.endswith((".py", ".sh", ".ipynb")):
            return _file_stem(word)
    return _file_stem(words[0])


def _file_stem(path: str) -> str:
    name = path.replace("\\", "/").rpartition("/")[2]
    return name.rpartition(".")[0] or name
