"""What `flatout top` shows, as lines of text: from frames alone, for any width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from flatout.monitor.text_table import Cell, Column, Footnotes, Spans, sparkline, table_lines
from flatout.schema.machine_sample import HARMLESS_THROTTLES, GpuSample, HostSample
from flatout.schema.top_frame import RunningRun, TopFrame, TopProcess
from flatout.schema.units import (
    bytes_text,
    count_text,
    counted_text,
    percent_text,
    rate_text,
    seconds_text,
)

_SHORT_REASONS = {
    "thermal-slowdown": "thermal", "hardware-thermal-slowdown": "thermal (hw)",
    "hardware-slowdown": "slowdown (hw)", "power-cap": "power cap", "power-brake": "power brake",
}  # fmt: skip
_ALMOST_FULL = 0.95
_FRAMES_SHOWN = 60

_NUMBER_KEYS: dict[str, Callable[[TopProcess], float | None]] = {
    "gpu memory": lambda process: process.gpu_bytes,
    "cpu": lambda process: process.utilization,
    "memory": lambda process: process.memory_bytes,
}
_TEXT_KEYS: dict[str, Callable[[TopProcess], tuple[str, int]]] = {
    "name": lambda process: ((process.name or "~").lower(), process.pid),
    "pid": lambda process: ("", process.pid),
}
SORT_KEYS = (*_NUMBER_KEYS, *_TEXT_KEYS)


class ViewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How it is shown. sort: one of SORT_KEYS, of processes. search: what a run or process has.

    selected: number of the process that is shown as chosen.
    """

    width: int = 80
    sort: str = "gpu memory"
    is_reversed: bool = False
    search: str = ""
    selected: int | None = None


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    """Lines from top to bottom. processes: those shown, in order.

    selected_line: the line of the process that is chosen.
    """

    lines: tuple[Spans, ...]
    processes: tuple[TopProcess, ...]
    selected_line: int | None = None


def top_view(frames: Sequence[TopFrame], request: ViewRequest) -> TopView:
    """The newest of the frames, with the others as its history."""
    frame, width = frames[-1], request.width
    notes = Footnotes()
    lines: list[Spans] = [_head(frame, request)]
    lines += _gpu_lines(frames, width, notes)
    lines += [(), *_host_lines(frames, width, notes)]
    runs = [run for run in frame.runs if _has(run.id, run.device, request=request)]
    if frame.runs:
        lines += [(), *_run_lines(runs, width, notes)]
    processes = sorted_processes(frame.processes, request)
    place: int | None = None
    if frame.processes:
        pids = [process.pid for process in processes]
        selected = pids.index(request.selected) if request.selected in pids else None
        lines.append(())
        if selected is not None:
            place = len(lines) + 1 + selected
        lines += _process_lines(processes, width, notes, selected)
    lines += _unlisted_lines(frame.machine.gpus, width)
    footnotes = notes.lines(width)
    if footnotes:
        lines += [(), *footnotes]
    return TopView(lines=tuple(lines), processes=tuple(processes), selected_line=place)


def adjusted(request: ViewRequest, what: str) -> ViewRequest:
    """The request with the next order (sort), the opposite one (reverse), or no filter (clear)."""
    replace = msgspec.structs.replace
    if what == "sort":
        place = (SORT_KEYS.index(request.sort) + 1) % len(SORT_KEYS)
        return replace(request, sort=SORT_KEYS[place], is_reversed=False)
    if what == "reverse":
        return replace(request, is_reversed=not request.is_reversed)
    return replace(request, search="", selected=None)


def keys_line(request: ViewRequest, width: int, *, is_paused: bool) -> str:
    """The keys, as many as there is room for."""
    keys = [
        "q quit", f"s sort: {request.sort}", "/ filter", "up/down choose", "k end it",
        "p continue" if is_paused else "p pause", "r reverse", "esc clear",
    ]  # fmt: skip
    while len(keys) > 1 and len("  ".join(keys)) > width:
        keys.pop()
    return "  ".join(keys)[:width]


def sorted_processes(processes: Sequence[TopProcess], request: ViewRequest) -> list[TopProcess]:
    """The processes that match, in order: unknown values last."""
    found = [
        one for one in processes if _has(str(one.pid), one.name, one.user, one.run, request=request)
    ]
    number = _NUMBER_KEYS.get(request.sort)
    if number is None:
        return sorted(found, key=_TEXT_KEYS[request.sort], reverse=request.is_reversed)
    sign = 1 if request.is_reversed else -1

    def key(process: TopProcess) -> tuple[bool, float, int]:
        value = number(process)
        return value is None, sign * (value or 0.0), process.pid

    return sorted(found, key=key)


def _has(*texts: str | None, request: ViewRequest) -> bool:
    return request.search.lower() in " ".join(filter(None, texts)).lower()


def _head(frame: TopFrame, request: ViewRequest) -> Spans:
    machine = frame.machine
    parts = [datetime.fromtimestamp(machine.at).strftime("%H:%M:%S")]
    if machine.source != "none":
        parts.append(counted_text(len(machine.gpus), "GPU"))
        parts.append(f"by {machine.source}" if machine.source != "demo" else "invented (--demo)")
    if request.search:
        parts.append(f"only `{request.search}`")
    text = "  " + " · ".join(parts)
    title = "flatout top"[: request.width]
    return ((title, "title"), (text[: max(0, request.width - len(title))], ""))


def _gpu_lines(frames: Sequence[TopFrame], width: int, notes: Footnotes) -> list[Spans]:
    machine = frames[-1].machine
    rows, gone = machine.gpus, _gone_gpus(frames)
    lines: list[Spans] = []
    if rows or gone:
        columns = [
            Column("GPU", 0), Column("busy", 1, is_right=True), Column("memory", 2, is_right=True),
            Column("temp", 3, is_right=True), Column("power", 4, is_right=True),
            Column("state", 5), Column("clock", 6, is_right=True),
            Column("history", 7, is_history=True), Column("fan", 8, is_right=True),
            Column("memory busy", 9, is_right=True), Column("PCIe in", 10, is_right=True),
            Column("PCIe out", 11, is_right=True),
        ]  # fmt: skip
        cells = [_gpu_cells(gpu, _history(frames, _gpu_busy(gpu))) for gpu in rows]
        for gpu in gone:
            empty = [Cell(reason="the GPU is no longer reported")] * (len(columns) - 2)
            cells.append([Cell(_gpu_name(gpu), "wrong"), *empty, Cell()])
            cells[-1][5] = Cell("gone", "wrong")
            cells[-1][7] = Cell(sparkline(_history(frames, _gpu_busy(gpu))), "dim")
        lines += table_lines(columns, cells, width, notes)
    if machine.reason is not None:
        about = "" if rows else "no GPU: "
        style = "attention" if rows or gone else "dim"
        lines += [((part, style),) for part in textwrap.wrap(about + machine.reason, max(8, width))]
    return lines


def _gone_gpus(frames: Sequence[TopFrame]) -> list[GpuSample]:
    """GPUs of earlier frames that the newest one lacks, although it has others, or had a source."""
    now = {gpu.uuid or gpu.index for gpu in frames[-1].machine.gpus}
    earlier = {gpu.uuid or gpu.index: gpu for frame in frames for gpu in frame.machine.gpus}
    return [gpu for key, gpu in earlier.items() if key not in now]


def _gpu_busy(gpu: GpuSample) -> Callable[[TopFrame], float | None]:
    key = gpu.uuid or gpu.index

    def busy(frame: TopFrame) -> float | None:
        same = [one for one in frame.machine.gpus if (one.uuid or one.index) == key]
        return same[0].utilization if same else None

    return busy


def _history(
    frames: Sequence[TopFrame], value: Callable[[TopFrame], float | None]
) -> list[float | None]:
    return [value(frame) for frame in frames[-_FRAMES_SHOWN:]]


def _gpu_name(gpu: GpuSample) -> str:
    name = (gpu.name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")
    return f"{gpu.index} {name}".strip()


def _gpu_cells(gpu: GpuSample, history: list[float | None]) -> list[Cell]:
    def cell(field: str, text: Callable[[Any], str], style: str = "") -> Cell:
        value = getattr(gpu, field)
        if value is None:
            return Cell(reason=gpu.unread.get(field, "not reported"))
        return Cell(text(value), style)

    is_full = bool(
        gpu.used_bytes and gpu.memory_bytes and gpu.used_bytes > _ALMOST_FULL * gpu.memory_bytes
    )
    limit = f"/{gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
    return [
        Cell(_gpu_name(gpu)),
        cell("utilization", _percent),
        cell(
            "used_bytes",
            lambda used: _of_bytes(used, gpu.memory_bytes),
            "attention" if is_full else "",
        ),
        cell("temperature_c", lambda value: f"{value:.0f} °C"),
        cell("power_w", lambda value: f"{value:.0f}{limit} W"),
        _state(gpu),
        cell("clock_hz", lambda value: f"{value / 1e9:.2f} GHz"),
        Cell(sparkline(history), "dim"),
        cell("fan", _percent),
        cell("memory_utilization", _percent),
        cell("pcie_received_bytes_per_s", lambda value: f"{bytes_text(value)}/s"),
        cell("pcie_sent_bytes_per_s", lambda value: f"{bytes_text(value)}/s"),
    ]


def _state(gpu: GpuSample) -> Cell:
    """What slows it down or has failed in it."""
    faults = [f"Xid {gpu.xid}"] if gpu.xid is not None else []
    if gpu.ecc_uncorrected:
        faults.append(f"ECC {gpu.ecc_uncorrected}")
    reasons = [one for one in gpu.throttle_reasons or () if one not in HARMLESS_THROTTLES]
    slow = list(dict.fromkeys(_SHORT_REASONS.get(one, one) for one in reasons))
    if faults or slow:
        return Cell(", ".join(faults + slow), "wrong" if faults else "attention")
    if gpu.throttle_reasons is None:
        return Cell(reason=gpu.unread.get("throttle_reasons", "not reported"))
    is_idle = "idle" in gpu.throttle_reasons
    return Cell("idle" if is_idle else "ok", "dim" if is_idle else "good")


def _host_lines(frames: Sequence[TopFrame], width: int, notes: Footnotes) -> list[Spans]:
    host = frames[-1].machine.host
    columns = [
        Column("host", 0), Column("", 1, is_right=True), Column("", 2),
        Column("history", 3, is_history=True),
    ]  # fmt: skip
    used = sparkline(_history(frames, lambda frame: _used_share(frame.machine.host)))
    busy = sparkline(_history(frames, lambda frame: frame.machine.host.utilization))
    rows = [
        [Cell("CPU"), _host_cell(host, "utilization", _percent), _cpus(host), Cell(busy, "dim")],
        [Cell("memory"), _memory(host), _swap(host), Cell(used, "dim")],
        [
            Cell("disks"),
            _host_cell(host, "disk_read_bytes_per_s", lambda value: f"{bytes_text(value)}/s read"),
            _host_cell(
                host, "disk_written_bytes_per_s", lambda value: f"{bytes_text(value)}/s written"
            ),
            Cell(),
        ],
    ]
    for disk in host.disks:
        is_full = disk.free_bytes < (1 - _ALMOST_FULL) * disk.total_bytes
        free = Cell(f"{bytes_text(disk.free_bytes)} free", "attention" if is_full else "")
        rows.append([Cell(disk.path), free, Cell(f"of {bytes_text(disk.total_bytes)}"), Cell()])
    return table_lines(columns, rows, width, notes)


def _host_cell(host: HostSample, field: str, text: Callable[[Any], str]) -> Cell:
    value = getattr(host, field)
    if value is None:
        return Cell(reason=host.unread.get(field, "not reported"))
    return Cell(text(value))


def _cpus(host: HostSample) -> Cell:
    if not host.utilizations:
        return Cell()
    busiest = percent_text(max(host.utilizations), 0)
    return Cell(f"{counted_text(len(host.utilizations), 'CPU')}, busiest {busiest}")


def _memory(host: HostSample) -> Cell:
    share = _used_share(host)
    if share is None or host.memory_bytes is None or host.available_bytes is None:
        return Cell(reason=host.unread.get("memory_bytes", "not reported"))
    text = _of_bytes(host.memory_bytes - host.available_bytes, host.memory_bytes)
    return Cell(text, "attention" if share > _ALMOST_FULL else "")


def _used_share(host: HostSample) -> float | None:
    if not host.memory_bytes or host.available_bytes is None:
        return None
    return 1 - host.available_bytes / host.memory_bytes


def _swap(host: HostSample) -> Cell:
    if not host.swap_bytes or host.swap_used_bytes is None:
        return Cell("no swap" if host.swap_bytes == 0 else "")
    return Cell(f"swap {_of_bytes(host.swap_used_bytes, host.swap_bytes)}")


def _run_lines(runs: Sequence[RunningRun], width: int, notes: Footnotes) -> list[Spans]:
    columns = [
        Column("run", 0), Column("step", 1, is_right=True), Column("rate", 2, is_right=True),
        Column("loss", 3, is_right=True), Column("of limit", 5, is_right=True),
        Column("left", 4, is_right=True), Column("device", 6), Column("memory", 7, is_right=True),
    ]  # fmt: skip
    return table_lines(columns, [_run_cells(run) for run in runs], width, notes)


def _run_cells(run: RunningRun) -> list[Cell]:
    def cell(field: str, text: Callable[[Any], str]) -> Cell:
        value = getattr(run, field)
        return (
            Cell(reason=run.unread.get(field, "not reported"))
            if value is None
            else Cell(text(value))
        )

    of = f"/{count_text(run.num_steps)}" if run.num_steps else ""
    step = (
        Cell(reason=run.unread["step"])
        if "step" in run.unread
        else Cell(f"{count_text(run.step)}{of}")
    )
    return [
        Cell(run.id),
        step,
        cell("samples_per_s", lambda value: rate_text(value, run.unit)),
        cell("loss", lambda value: f"{value:.4g}"),
        cell("share", _percent),
        cell("left_s", lambda value: seconds_text(max(1, round(value)))),
        Cell(run.device or ""),
        Cell(bytes_text(run.memory_bytes) if run.memory_bytes is not None else ""),
    ]


def _process_lines(
    processes: Sequence[TopProcess], width: int, notes: Footnotes, selected: int | None
) -> list[Spans]:
    columns = [
        Column("process", 0), Column("pid", 1, is_right=True), Column("GPU", 4),
        Column("GPU memory", 2, is_right=True), Column("CPU", 3, is_right=True),
        Column("memory", 5, is_right=True), Column("run", 6), Column("user", 7),
    ]  # fmt: skip
    rows = [_process_cells(process) for process in processes]
    return table_lines(columns, rows, width, notes, selected)


def _unlisted_lines(gpus: Sequence[GpuSample], width: int) -> list[Spans]:
    """Which GPUs do not list their processes, and why."""
    by_reason: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.processes is None:
            reason = gpu.unread.get("processes", "not reported")
            by_reason.setdefault(reason, []).append(str(gpu.index))
    return [
        ((part, "dim"),)
        for reason, indices in by_reason.items()
        for part in textwrap.wrap(
            f"processes of GPU {', '.join(indices)} are not listed: {reason}", max(8, width)
        )
    ]


def _process_cells(process: TopProcess) -> list[Cell]:
    def cell(field: str, text: Callable[[Any], str]) -> Cell:
        value = getattr(process, field)
        return (
            Cell(reason=process.unread.get(field, "not reported"))
            if value is None
            else Cell(text(value))
        )

    return [
        cell("name", str),
        Cell(str(process.pid)),
        Cell(",".join(map(str, process.gpus))),
        cell("gpu_bytes", bytes_text),
        cell("utilization", _percent),
        cell("memory_bytes", bytes_text),
        Cell(process.run or ""),
        cell("user", str),
    ]


def _percent(share: float) -> str:
    return percent_text(share, 0)


def _of_bytes(part: float, whole: float | None) -> str:
    """ "5.4/8.0 GiB": both in the unit of the whole."""
    if whole is None:
        return bytes_text(part)
    text = bytes_text(whole)
    number, unit = text.split(" ")
    scale = whole / float(number) if float(number) else 1.0
    return f"{part / scale:.1f}/{text}"
