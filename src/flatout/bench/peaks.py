"""The makers' peaks, by the exact name of the device."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

from flatout.schema.bench import BenchRow
from flatout.system import atomic_files

_FILE = Path(__file__).with_name("peaks.toml")


class Peak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card: FLOP/s by dtype, memory in B/s; None if it is not known.

    source: the page that was read. quotes: the maker's document that it repeats.
    """

    name: str
    source: str
    quotes: str
    memory: float | None = None
    fp64: float | None = None
    fp32: float | None = None
    tf32: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    float8: float | None = None
    int8: float | None = None


@functools.cache
def shipped_peaks() -> dict[str, Peak]:
    """All peaks of this release, by name."""
    with atomic_files.open_file(_FILE) as file:
        rows = msgspec.convert(tomllib.load(file)["card"], list[Peak])
    return {row.name: row for row in rows}


def with_peak(row: BenchRow, device_name: str | None) -> BenchRow:
    """The row with the maker's peak, if there is one for exactly this device."""
    peak = shipped_peaks().get(device_name or "")
    if peak is None:
        return row
    _, group, kind = row.id.split("/", 2) if row.id.count("/") >= 2 else ("", "", "")
    field = "memory" if group == "memory" else kind if group == "matmul" else None
    value = getattr(peak, field, None) if field else None
    if value is None:
        return row
    return msgspec.structs.replace(
        row, vendor=value, vendor_source=f"{peak.source} ({peak.quotes})"
    )
