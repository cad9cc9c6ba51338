"""What the GPUs do, by nvidia-smi: slower than NVML, but a program of its own."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from typing import Any

from flatout.schema.machine_sample import GpuSample
from flatout.system.host_system import Completed, System
from flatout.system.nvml_child import throttle_reasons
from flatout.system.probes.gpus import SMI_TIMEOUT_S, ending

_MIB, _MHZ, _PERCENT = 2.0**20, 1e6, 0.01
# Field of a GpuSample -> nvidia-smi's name for it, and what a number of it is multiplied by.
_NUMBERS: dict[str, tuple[str, float]] = {
    "utilization": ("utilization.gpu", _PERCENT),
    "memory_utilization": ("utilization.memory", _PERCENT),
    "memory_bytes": ("memory.total", _MIB),
    "used_bytes": ("memory.used", _MIB),
    "temperature_c": ("temperature.gpu", 1.0),
    "power_w": ("power.draw", 1.0),
    "power_limit_w": ("enforced.power.limit", 1.0),
    "clock_hz": ("clocks.sm", _MHZ),
    "highest_clock_hz": ("clocks.max.sm", _MHZ),
    "memory_clock_hz": ("clocks.mem", _MHZ),
    "fan": ("fan.speed", _PERCENT),
    "ecc_corrected": ("ecc.errors.corrected.volatile.total", 1.0),
    "ecc_uncorrected": ("ecc.errors.uncorrected.volatile.total", 1.0),
}
_TEXTS = {"name": "name", "uuid": "uuid", "pci_bus_id": "pci.bus_id"}
_THROTTLE = "clocks_throttle_reasons.active"
_WHOLE = ("memory_bytes", "used_bytes", "ecc_corrected", "ecc_uncorrected")
FIELDS = (*_TEXTS.values(), *(name for name, _ in _NUMBERS.values()), _THROTTLE)
# What nvidia-smi reports in another way, or not at all.
_NEVER = ("energy_j", "pcie_sent_bytes_per_s", "pcie_received_bytes_per_s", "processes")


def query_smi(
    system: System, program: str, fields: Sequence[str]
) -> tuple[tuple[GpuSample, ...] | str, tuple[str, ...]]:
    """The GPUs, or why there are none; and the fields to query next time.

    A driver that does not know a field answers nothing else: it is asked again without it.
    """
    known = tuple(fields)
    while True:
        argv = [program, f"--query-gpu={','.join(known)}", "--format=csv,noheader,nounits"]
        done = system.run(argv, SMI_TIMEOUT_S)
        refused = re.search(r'Field "([^"]+)" is not a valid field', done.stdout + done.stderr)
        if refused is None or refused[1] not in known:
            return parse_smi_samples(done, known), known
        known = tuple(name for name in known if name != refused[1])


def parse_smi_samples(done: Completed, fields: Sequence[str]) -> tuple[GpuSample, ...] | str:
    """The GPUs in PCI bus order from `csv,noheader,nounits`, or why there are none."""
    if done.exit_code != 0:
        return f"nvidia-smi: {done.reason or ending(done)}"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    # A GPU that fell off its bus has a sentence in place of its row.
    rows = [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == len(fields)]
    if not rows:
        return f"nvidia-smi: cannot read its answer {''.join(lines[:1])[:120]!r}"
    cells = [dict(zip(fields, (cell.strip() for cell in row), strict=True)) for row in rows]
    cells.sort(key=lambda row: row.get("pci.bus_id", ""))
    return tuple(_gpu(index, row) for index, row in enumerate(cells))


def _gpu(index: int, cells: dict[str, str]) -> GpuSample:
    read: dict[str, Any] = {}
    unread = dict.fromkeys(_NEVER, "nvidia-smi: this query does not report it")

    def take(field: str, name: str, convert: Callable[[str], Any]) -> None:
        cell = cells.get(name)
        try:
            if cell is None:
                raise ValueError
            read[field] = convert(cell)
        except ValueError:
            unread[field] = f"nvidia-smi: {cell or 'this driver does not support the query'}"

    for field, name in _TEXTS.items():
        take(field, name, _known)
    for field, (name, factor) in _NUMBERS.items():
        take(field, name, lambda cell, by=factor: float(cell) * by)  # type: ignore[misc]
    take("throttle_reasons", _THROTTLE, lambda cell: tuple(throttle_reasons(int(cell, 16))))
    read |= {field: round(read[field]) for field in _WHOLE if field in read}
    return GpuSample(index=index, unread=unread, **read)


def _known(cell: str) -> str:
    # [N/A], [Not Supported], [Unknown Error] ...
    if not cell or cell.startswith("["):
        raise ValueError
    return cell
