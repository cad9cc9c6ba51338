"""What `flatout bench` measures: one file to share, and to compare with another."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.machine import Machine

BENCH_VERSION = 1
# base units; `/` separates. No prefixes: 1.2e12, not 1.2 T.
Unit = Literal[
    "flop/s", "op/s", "B/s", "s", "B", "samples/s", "tokens/s", "J/sample", "share", "file/s",
    "loss",
]  # fmt: skip


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity, measured several times.

    id: the same on every machine, such as "limits/matmul/bf16" or "run/mlp/flatout/samples_per_s".
    label: for people. samples: one of each process or block, in time order, outliers included.
    is_higher_better: throughput, not latency.
    vendor: the maker's peak for this device, with source; None if unknown.
    conditions: what was asked, such as {"device": "cpu", "threads": "2", "size": "4096"}.
    unread: the reason if there are no samples ("no GPU", "not readable without root").
    """

    id: str
    label: str
    unit: Unit
    samples: tuple[float, ...] = ()
    is_higher_better: bool = True
    vendor: float | None = None
    vendor_source: str | None = None
    conditions: dict[str, str] = {}
    unread: str | None = None


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """Power, clocks and load at one moment; None if unreadable.

    other_cpus: CPUs kept busy by other programs. throttles: active reasons.
    """

    at: str
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttles: tuple[str, ...] = ()
    other_cpus: float | None = None
    is_on_battery: bool | None = None


class BenchFile(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one `flatout bench` command.

    kind: what was measured. began, ended: the state of the machine then. Of a GPU, `ended` has the
    median clocks and power while it computed, the highest temperature, and all throttle reasons.
    versions: of Python, torch and others. settings: how it was measured.
    warnings: what makes these numbers doubtful, such as a busy machine.
    """

    bench_version: int = BENCH_VERSION
    kind: Literal["limits", "run"]
    flatout: str
    machine: Machine
    versions: dict[str, str] = {}
    settings: dict[str, str] = {}
    began: DeviceState
    ended: DeviceState
    rows: tuple[BenchRow, ...]
    warnings: tuple[str, ...] = ()

    @property
    def num_processes(self) -> int:
        """Processes that measured each row; 0 if the settings, which may hold anything, lack it."""
        text = self.settings.get("num_processes", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
