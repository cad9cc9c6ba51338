"""The history of the machine as curves over time, from the daily files of `flatout monitor`.

Each day has an index of its extremes, as a run's metrics have: see `metric_index.py`. A month of
samples takes gigabytes, of which a chart needs a few hundred points.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.metric_curves import CurveView, MetricCurve, MetricCurves
from flatout.system import paths
from flatout.system.clock import sleep_s
from flatout.system.store.daily_files import day_files, monitor_folder, size_bytes
from flatout.system.store.metric_index import IndexedFile, curves_in, index_lines

_DAY_S = 86_400
_FEWEST_COLUMNS = 4
# How long the index is added to without a pause.
_TURN_S, _PAUSE_S = 0.05, 0.02


class _HostLine(msgspec.Struct):
    utilization: float | None = None
    memory_bytes: float | None = None
    available_bytes: float | None = None
    swap_used_bytes: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None


class _GpuLine(msgspec.Struct):
    index: int
    utilization: float | None = None
    used_bytes: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class _SampleLine(msgspec.Struct):
    """Of a sample, what is drawn; what it has besides is not decoded."""

    at: Annotated[float, msgspec.Meta(ge=0, le=2**53)]
    host: _HostLine
    gpus: tuple[_GpuLine, ...] = ()


def machine_curves(
    first_s: int, last_s: int, *, columns: int, panel: str | None = None
) -> tuple[MetricCurves, list[FlatoutError]]:
    """The curves between two times, and why days are missing in them.

    Steps are seconds since the epoch.

    They come from the index, and from the last samples, which it does not have yet. Their
    share_read is below 1 where it lacks more: see `index_samples`.

    Args:
        first_s, last_s: seconds since the epoch.
        columns: of a chart; a curve has at most two points in each.
        panel: None for all.
    """
    found: list[MetricCurves] = []
    sizes: list[int] = []
    problems: list[FlatoutError] = []
    for begins_s, file in _days():
        begins, ends = max(first_s, begins_s), min(last_s, begins_s + _DAY_S - 1)
        if begins > ends:
            continue
        share = (ends - begins) / max(1, last_s - first_s)
        view = CurveView(
            first_step=begins, last_step=ends, columns=max(_FEWEST_COLUMNS, round(columns * share))
        )
        try:
            found.append(curves_in(file, view, panel=panel, budget_s=None))
        except FlatoutError as error:
            problems.append(error)
            continue
        sizes.append(size_bytes(file.path))
    curves = MetricCurves(curves=_joined(found), share_read=_share_read(found, sizes))
    return curves, problems


def index_samples() -> None:
    """Adds all samples to the index that it does not have, the newest day first.

    A day of them takes seconds; a day that has ended is read once.

    Raises:
        UsageError, RunFailed: curves-not-indexed, and as the operating system says it; of several
            days, for the newest, and after the others.
    """
    problems = []
    files = [file for _, file in _days()]
    _forget_removed_days({file.index for file in files})
    for file in reversed(files):
        try:
            while not index_lines(file, _TURN_S):
                # Those who look meanwhile need the processor, too.
                sleep_s(_PAUSE_S)
        except FlatoutError as error:
            problems.append(error)
    if problems:
        raise problems[0]


def _days() -> list[tuple[int, IndexedFile]]:
    """Midnight of each day that is kept, and its samples; oldest first."""
    days = list(day_files(monitor_folder()))
    folder, read = _index_folder(), _reader()
    return [
        (
            int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()),
            IndexedFile(
                path=path, index=folder / f"{day}.sqlite", read=read,
                is_finished=day != days[-1][0],
            ),
        )
        for day, path in days
    ]  # fmt: skip


def _index_folder() -> Path:
    return paths.state_path("web") / "samples"


def _forget_removed_days(kept: set[Path]) -> None:
    with contextlib.suppress(OSError):
        for path in _index_folder().glob("*.sqlite"):
            if path not in kept:
                path.unlink(missing_ok=True)


def _share_read(found: list[MetricCurves], sizes: list[int]) -> float:
    whole = sum(sizes)
    if not whole:
        return 1.0
    return sum(one.share_read * size for one, size in zip(found, sizes, strict=True)) / whole


def _joined(days: list[MetricCurves]) -> tuple[MetricCurve, ...]:
    """One curve of each kind, from those of each day."""
    joined: dict[tuple[str, str], MetricCurve] = {}
    for day in days:
        for curve in day.curves:
            key = (curve.panel, curve.line)
            if key not in joined:
                joined[key] = MetricCurve(panel=curve.panel, line=curve.line, steps=[], values=[])
            joined[key].steps.extend(curve.steps)
            joined[key].values.extend(curve.values)
    return tuple(joined.values())


def _reader() -> Callable[[bytes], tuple[int, Iterator[tuple[str, str, float]]]]:
    decoder = msgspec.json.Decoder(_SampleLine)

    def read(text: bytes) -> tuple[int, Iterator[tuple[str, str, float]]]:
        line = decoder.decode(text)
        return int(line.at), _values(line)

    return read


def _values(line: _SampleLine) -> Iterator[tuple[str, str, float]]:
    """(panel, line, value) of what is known."""
    host = line.host
    used_bytes = None
    if host.memory_bytes is not None and host.available_bytes is not None:
        used_bytes = host.memory_bytes - host.available_bytes
    known = [
        ("utilization", "cpu", host.utilization),
        ("host_memory_bytes", "used", used_bytes),
        ("host_memory_bytes", "swap", host.swap_used_bytes),
        ("disk_bytes_per_s", "read", host.disk_read_bytes_per_s),
        ("disk_bytes_per_s", "written", host.disk_written_bytes_per_s),
    ]
    for gpu in line.gpus:
        name = f"gpu {gpu.index}"
        known += [
            ("utilization", name, gpu.utilization),
            ("gpu_memory_bytes", name, gpu.used_bytes),
            ("gpu_temperature_c", name, gpu.temperature_c),
            ("gpu_power_w", name, gpu.power_w),
        ]
    for panel, name, value in known:
        if value is not None:
            yield panel, name, value
