"""Results of `flatout bench` in the state folder, for the pages of `flatout web`."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.machine import Cpu, Host, Machine
from flatout.system.paths import state_folder

HOSTS = {
    "Linux": Host(os="linux", release="6.8"), "WSL2": Host(os="linux", wsl=2),
    "Windows": Host(os="windows", release="26100"),
}  # fmt: skip


def bench_row(id: str, middle: float, unit: Any = "flop/s", **fields: Any) -> BenchRow:
    """A row of 15 samples near a value."""
    generator = random.Random(id)
    samples = tuple(middle * math.exp(generator.gauss(0, 0.01)) for _ in range(15))
    known = {"label": id, "is_higher_better": unit != "s", **fields}
    return BenchRow(id=id, unit=unit, samples=samples, **known)


def limits_file(speed: float = 1.0, host: str = "Linux", **fields: Any) -> BenchFile:
    """The limits of a machine; speed: how many times as fast it is."""
    rows = (
        bench_row("limits/matmul/fp32", 1e11 * speed, label="matrix product fp32", vendor=2e11),
        bench_row("limits/matmul/bf16", 3e11 * speed, label="matrix product bf16"),
        bench_row("limits/memory/triad", 2e10, "B/s", label="memory, triad"),
        bench_row("limits/launch/operator", 5e-6 / speed, "s", label="launch, operator"),
        BenchRow(id="limits/pinned", label="pinned memory, at most", unit="B", unread="no GPU"),
    )
    return bench_file("limits", rows, host, **fields)


def workload_file(speedup: float = 2.0, host: str = "Linux", **fields: Any) -> BenchFile:
    """A workload as the plain loop and with flatout's recipe."""
    rows = (
        bench_row("run/mlp/plain/cpu/samples_per_s", 1000.0, "samples/s"),
        bench_row("run/mlp/flatout/cpu/samples_per_s", 1000.0 * speedup, "samples/s"),
    )
    return bench_file("run", rows, host, **fields)


def bench_file(kind: Any, rows: tuple[BenchRow, ...], host: str, **fields: Any) -> BenchFile:
    """A result of a machine with this system."""
    state = DeviceState(at="2026-11-24T16:00:00Z", other_cpus=0.0)
    known = {
        "flatout": "1", "versions": {"torch": "2.13.0"}, "began": state, "ended": state,
        "machine": Machine(host=HOSTS[host], cpu=Cpu(name="A CPU", num_cores=4, num_threads=4)),
        "settings": {"device": "cpu", "num_processes": "3"}, **fields,
    }  # fmt: skip
    return BenchFile(kind=kind, rows=rows, **known)


def keep(id: str, file: BenchFile | bytes) -> None:
    """Puts a result into the state folder, as `limits/0123` or `bench/run-mlp`."""
    path = state_folder() / f"{id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file if isinstance(file, bytes) else msgspec.json.encode(file))
