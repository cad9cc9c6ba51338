"""The ratios of a run: flatout to the plain loop, a framework to another, the GPU to the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from flatout.bench.limits import is_busy
from flatout.bench.statistics import LEAST_DIFFERENCE, LEAST_SAMPLES, ratio_of_medians, spanning
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.bench_comparison import ComparisonVerdict
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text
from flatout.schema.workloads import WORKLOADS

SPEEDS = ("samples_per_s", "tokens_per_s")
# First parts of ids: plain loop and flatout, or other frameworks, whose quantities differ.
_KINDS = ("run", "frameworks")
_NUM_PARTS = 5
_LONGEST_COUNT = 7
# Of one process each. Two that did the same next to other programs differed by x2.0 (2026-11-24).
_LEAST_ALONE, _LEAST_ALONE_BUSY = 0.25, 3.0


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on a device.

    device: its type. rows: by way and quantity, ways in the order in which they were measured.
    speedup: of flatout over the plain loop; None if one of them was not measured.
    """

    workload: str
    device: str
    rows: dict[str, dict[str, BenchRow]]
    speedup: Interval | None = None

    @property
    def first(self) -> BenchRow:
        """A row for the conditions that all share; one that was measured, if any was."""
        rows = [row for of_way in self.rows.values() for row in of_way.values()]
        return next((row for row in rows if row.samples), rows[0])

    def speed(self, way: str) -> BenchRow | None:
        """The measured row of samples or tokens per second; None without samples."""
        rows = self.rows.get(way, {})
        return next((rows[one] for one in SPEEDS if one in rows and rows[one].samples), None)


class EpochTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long the published network takes for its data at the measured speed, in seconds by way.

    text: of the data, such as "an epoch of ImageNet".
    """

    text: str
    seconds: dict[str, float]


class GpuRatio(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast a GPU is as the CPU, both with flatout's recipe. text: for people."""

    workload: str
    ratio: Interval
    text: str


def summaries(file: BenchFile) -> list[RunSummary]:
    """Every workload on every device of a file."""
    found: dict[tuple[str, str], dict[str, dict[str, BenchRow]]] = {}
    for row in file.rows:
        parts = row.id.split("/")
        if len(parts) == _NUM_PARTS and parts[0] in _KINDS:
            _, workload, way, device, quantity = parts
            ways = found.setdefault((workload, device), {})
            ways.setdefault(way, {})[quantity] = row
    made = [
        RunSummary(workload=workload, device=device, rows=rows)
        for (workload, device), rows in found.items()
    ]
    return [msgspec.structs.replace(one, speedup=speedup_of(one, "flatout", file)) for one in made]


def speedup_of(summary: RunSummary, way: str, file: BenchFile) -> Interval | None:
    """How many times as fast as the plain loop a way is; None if one of them was not measured."""
    return speed_ratio(summary.speed("plain"), summary.speed(way), file)


def verdict_of(ratio: Interval, file: BenchFile) -> ComparisonVerdict:
    """The verdict on one ratio by itself; of a single process each, only if it is large."""
    least = 1 + _least_difference(file)
    if ratio.low > least:
        return "faster"
    return "slower" if ratio.high < 1 / least else "cannot tell"


def _least_difference(file: BenchFile) -> float:
    """Intervals know how processes differ if there are several of each."""
    if file.num_processes != 1:
        return LEAST_DIFFERENCE
    return _LEAST_ALONE_BUSY if is_busy(file) else _LEAST_ALONE


def epoch_times(summary: RunSummary) -> EpochTimes | None:
    """None for a smaller network than the published one, and where people do not count epochs."""
    workload = WORKLOADS.get(summary.workload)
    if workload is None or workload.epochs is None:
        return None
    if summary.first.conditions.get("size") != workload.published.text:
        return None
    epochs = workload.epochs
    speeds = {way: summary.speed(way) for way in summary.rows}
    return EpochTimes(
        text=epochs.text,
        seconds={
            way: epochs.amount / median(speed.samples)
            for way, speed in speeds.items()
            if speed is not None
        },
    )


def gpu_ratios(file: BenchFile) -> Iterator[GpuRatio]:
    """The GPU over the CPU, for each workload that was measured on both."""
    tables: dict[str, dict[str, RunSummary]] = {}
    for one in summaries(file):
        tables.setdefault(one.workload, {})[one.device] = one
    cores = file.settings.get("cores", "unknown")
    # A file from elsewhere may hold any text.
    is_number = cores.isdecimal() and len(cores) < _LONGEST_COUNT
    cpu_text = counted_text(int(cores), "core") if is_number else "an unknown CPU"
    for workload, by_device in tables.items():
        if not {"cpu", "cuda"} <= by_device.keys():
            continue
        cpu, gpu = (by_device[device].speed("flatout") for device in ("cpu", "cuda"))
        ratio = speed_ratio(cpu, gpu, file)
        if ratio is not None and cpu is not None and gpu is not None:
            text = _verdict_text(verdict_of(ratio, file), ratio, cpu_text)
            text += _batches_text(cpu, gpu)
            yield GpuRatio(workload=workload, ratio=ratio, text=text)


def _verdict_text(verdict: ComparisonVerdict, ratio: Interval, cpu: str) -> str:
    if verdict == "slower":
        return f"use the CPU ({cpu}): it is {1 / ratio.middle:.3g} times as fast as the GPU"
    if verdict == "faster":
        return f"the GPU is {ratio.middle:.3g} times as fast as {cpu}"
    return f"cannot tell whether the GPU is faster than {cpu}"


def _batches_text(cpu: BenchRow, gpu: BenchRow) -> str:
    sizes = [row.conditions.get("batch_size", "unknown") for row in (cpu, gpu)]
    return "" if sizes[0] == sizes[1] else f" (batches of {sizes[1]}; {sizes[0]} on the CPU)"


def speed_ratio(
    first: BenchRow | None, second: BenchRow | None, file: BenchFile
) -> Interval | None:
    """How many times as fast the second one is, with its interval; None if it is not known.

    On a busy machine, the interval also covers the ratio of each turn: other programs may have
    disturbed one way in most of its turns, which a bootstrap over few processes cannot see.
    """
    if first is None or second is None:
        return None
    pair: tuple[Sequence[float], Sequence[float]] = (first.samples, second.samples)
    if min(map(len, pair)) < LEAST_SAMPLES or min(*first.samples, *second.samples) <= 0:
        return None
    processes = (file.num_processes, file.num_processes)
    ratio = ratio_of_medians(*pair, processes=processes).ratio
    if not is_busy(file):
        return ratio
    turns = [_of_turns(samples, file.num_processes) for samples in pair]
    ratios = [after / before for before, after in zip(*turns, strict=False)]
    return spanning(ratio, ratios)


def _of_turns(samples: Sequence[float], num_processes: int) -> list[float]:
    """The median of each process; single samples where there was one process, or it is unknown."""
    size = len(samples) // num_processes if num_processes > 1 else 1
    size = max(size, 1)
    return [median(samples[start : start + size]) for start in range(0, len(samples), size)]
