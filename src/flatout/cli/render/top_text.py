"""The lines of `flatout top` in colors, and its samples as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from flatout.cli.render import show
from flatout.cli.render.control_characters import visible
from flatout.monitor.text_table import Spans
from flatout.monitor.top_view import ViewRequest, top_view
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.schema.top_frame import TopFrame

_STYLES = {
    "": "", "dim": "dim", "title": "bold", "good": "green", "attention": "yellow",
    "wrong": "bold red", "selected": "reverse",
}  # fmt: skip
_GPU_FIELDS = (
    "utilization", "memory_utilization", "memory_bytes", "used_bytes", "temperature_c", "power_w",
    "power_limit_w", "clock_hz", "memory_clock_hz", "fan", "energy_j", "pcie_sent_bytes_per_s",
    "pcie_received_bytes_per_s", "ecc_corrected", "ecc_uncorrected", "xid",
)  # fmt: skip
_HOST_FIELDS = (
    "utilization", "memory_bytes", "swap_bytes", "swap_used_bytes", "disk_read_bytes_per_s",
    "disk_written_bytes_per_s",
)  # fmt: skip
CSV_COLUMNS = ("at", "device", "name", *dict.fromkeys(_GPU_FIELDS + _HOST_FIELDS),
               "throttle_reasons")  # fmt: skip


def styled(lines: Iterable[Spans]) -> Text:
    """Lines as one text."""
    text = Text(no_wrap=True, end="")
    for number, spans in enumerate(lines):
        if number:
            text.append("\n")
        for part, name in spans:
            text.append(visible(part), _STYLES[name])
    return text


def print_frame(frame: TopFrame) -> None:
    """A frame, once."""
    console = show.make_console()
    # In a pipe there is no width, but columns side by side need one.
    width = console.width if console.file.isatty() else 120
    for spans in top_view([frame], ViewRequest(width=width)).lines:
        line = styled([spans])
        line.rstrip()
        console.print(line, soft_wrap=True)


def csv_rows(sample: MachineSample) -> list[dict[str, Any]]:
    """A row for each GPU and one for the host; unknown is empty."""
    at = datetime.fromtimestamp(sample.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    rows: list[dict[str, Any]] = []
    for gpu in sample.gpus:
        reasons = gpu.throttle_reasons
        rows.append(
            {"at": at, "device": f"gpu{gpu.index}", "name": gpu.name}
            | _values(gpu, _GPU_FIELDS)
            | {"throttle_reasons": None if reasons is None else " ".join(reasons) or "none"}
        )
    host = sample.host
    used = None
    if host.memory_bytes is not None and host.available_bytes is not None:
        used = host.memory_bytes - host.available_bytes
    rows.append({"at": at, "device": "host", "used_bytes": used} | _values(host, _HOST_FIELDS))
    return rows


def _values(sample: GpuSample | HostSample, fields: Iterable[str]) -> dict[str, Any]:
    return {field: getattr(sample, field) for field in fields}


def print_csv(sample: MachineSample, *, has_header: bool) -> None:
    """The rows of a sample."""
    writer = csv.DictWriter(sys.stdout, CSV_COLUMNS, lineterminator="\n")
    if has_header:
        writer.writeheader()
    writer.writerows(csv_rows(sample))
    sys.stdout.flush()
