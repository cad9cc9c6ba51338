"""Result files: measurements, the machine, versions and the date."""

from __future__ import annotations

import platform
import re
import statistics
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.doctor.redaction import redacted
from flatout.runs import api as runs_api
from flatout.schema.machine import Machine
from flatout.system import atomic_files, clock


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A measured number. name and unit in base units; value is a median or a reading.

    spread: (low, high).
    """

    name: str
    value: float
    unit: str
    step: int | None = None
    at: str | None = None
    samples: tuple[float, ...] = ()
    spread: tuple[float, float] | None = None
    conditions: dict[str, Any] = {}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a benchmark or campaign. details: anything else, as JSON."""

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
    """The median of samples, with all samples and their conditions."""
    return Measurement(
        name=name,
        value=statistics.median(samples),
        unit=unit,
        samples=samples,
        spread=(min(samples), max(samples)),
        conditions=conditions,
    )


def read_machine() -> Machine:
    """The facts of this machine, without local paths."""
    return msgspec.structs.replace(runs_api.probe(sys.executable), python=platform.python_version())


def machine_text(machine: Machine) -> str:
    """The machine on one line, for the head of a table."""
    cores = machine.cpu.num_cores or machine.cpu.num_threads
    parts = [machine.cpu.name, f"{cores} cores", *(gpu.name for gpu in machine.gpus)]
    return " · ".join([part for part in parts if part] + [_system_text(machine)])


def _system_text(machine: Machine) -> str:
    return f"{machine.host.os} {machine.host.release or ''}".strip()


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the given packages that are installed."""
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
    """Writes DATE-BENCHMARK-MACHINE.json into a folder; returns its path."""
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
    atomic_files.write_json(path, result)
    return path
