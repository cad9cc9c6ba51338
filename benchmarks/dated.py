"""Results as files: measurements, the machine they were made on, versions and date."""

from __future__ import annotations

import platform
import re
import statistics
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__, flow
from flatout.doctor.redaction import redacted
from flatout.nouns.machine import Machine
from flatout.nouns.measurement import Measurement
from flatout.system import clock, store

RESULTS = Path(__file__).parent / "results"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark found. details: whatever else it has to tell, as JSON."""

    benchmark: str
    at: str
    flatout: str
    machine: Machine
    versions: dict[str, str]
    measurements: tuple[Measurement, ...]
    details: dict[str, Any] = {}


def measurement(
    name: str, unit: str, samples: tuple[float, ...], conditions: dict[str, Any]
) -> Measurement:
    """A median of samples, with all of them and the conditions they were made under."""
    return Measurement(
        name=name,
        value=statistics.median(samples),
        unit=unit,
        samples=samples,
        spread=(min(samples), max(samples)),
        conditions=conditions,
    )


def read_machine() -> Machine:
    """The facts of this machine, without paths that mean nothing elsewhere."""
    return msgspec.structs.replace(flow.probe(sys.executable), python=platform.python_version())


def machine_text(machine: Machine) -> str:
    """The machine on one line, as it stands above a table."""
    cores = machine.cpu.num_cores or machine.cpu.num_threads
    parts = [machine.cpu.name, f"{cores} cores", *(gpu.name for gpu in machine.gpus)]
    return " · ".join([part for part in parts if part] + [_system_text(machine)])


def _system_text(machine: Machine) -> str:
    return f"{machine.host.os} {machine.host.release or ''}".strip()


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_result(
    benchmark: str,
    machine: Machine,
    measurements: list[Measurement],
    details: dict[str, Any],
    folder: Path,
) -> Path:
    """Writes DATE-BENCHMARK-MACHINE.json into a folder; gives its path."""
    at = clock.now_text()
    name = (machine.gpus[0].name if machine.gpus else machine.cpu.name) or "unknown"
    cores = machine.cpu.num_cores or machine.cpu.num_threads
    slug = re.sub(r"[^a-z0-9]+", "-", f"{name} {cores} cores".lower()).strip("-")
    path = folder / f"{at[:10]}-{benchmark}-{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = Result(
        benchmark=benchmark,
        at=at,
        flatout=__version__,
        machine=redacted(machine),
        versions=versions("torch", "numpy", "lightning", "accelerate", "safetensors", "msgspec"),
        measurements=tuple(measurements),
        details=details,
    )
    store.write_json(path, result)
    return path
