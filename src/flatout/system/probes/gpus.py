"""NVIDIA's GPUs: by NVML in a child, else by nvidia-smi."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from flatout.schema.machine import NO_NVML, NO_SMI, Gpu
from flatout.system.host_system import Completed, System

NVML_TIMEOUT_S = 3.0
SMI_TIMEOUT_S = 5.0

_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
    "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/nvidia", "/run/opengl-driver/lib",
)  # fmt: skip
_SMI_FOLDERS = ("/usr/lib/wsl/lib", "/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin")
_SMI_STATE = (
    "pci.bus_id", "driver_model.current", "mig.mode.current", "persistence_mode", "display_active",
)  # fmt: skip
_STATE = (
    "driver_model", "is_mig_on", "is_persistence_on", "has_display", "num_processes",
    "throttle_reasons",
)  # fmt: skip
_SMI_FIELDS = ("name", "memory.total", "memory.free", "pci.bus_id", "uuid", "driver_version")


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one source on the GPUs; unread: reasons for its None values."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    unread: dict[str, str] = {}


def probe_gpus(system: System) -> GpuReport:
    """The GPUs, the driver, and why what is None is None.

    NVML is queried first. Where neither its library nor nvidia-smi exists no process is started.
    """
    is_library_there = has_library(system)
    program = smi_program(system)
    if not is_library_there and program is None:
        return _nothing(absence(system))
    reasons = []
    if is_library_there:
        argv = [system.python, "-P", "-m", "flatout.system.nvml_child"]
        result = parse_nvml(system.run(argv, NVML_TIMEOUT_S))
        if isinstance(result, GpuReport):
            return result
        reasons.append(result)
    else:
        reasons.append(f"{NO_NVML}{_library_name(system)}")
    if program is None:
        reasons.append(NO_SMI)
        return _nothing("; ".join(reasons))
    result = _query_smi(system, program, why_not_nvml=reasons[0])
    return result if isinstance(result, GpuReport) else _nothing("; ".join([*reasons, result]))


def _nothing(reason: str) -> GpuReport:
    return GpuReport(unread={"gpus": reason, "driver": reason, "cuda": reason})


def absence(system: System) -> str:
    """Why there are no GPUs where neither NVML nor nvidia-smi was found."""
    reason = f"neither NVML ({_library_name(system)}) nor nvidia-smi was found"
    for path in ("/proc/driver/nvidia/version", "/dev/nvidiactl"):
        if system.exists(path):
            return f"{reason}, although the kernel has NVIDIA's driver ({path})"
    if system.exists("/dev/dxg"):
        return f"{reason}, although WSL passes a GPU through (/dev/dxg)"
    return f"{reason}: no NVIDIA driver is installed"


def _library_name(system: System) -> str:
    return "nvml.dll" if system.platform == "win32" else _LIBRARY


def _windows_folders(system: System) -> tuple[str, str]:
    root = system.environment.get("SystemRoot", r"C:\Windows")
    programs = system.environment.get("ProgramFiles", r"C:\Program Files")
    return rf"{root}\System32", rf"{programs}\NVIDIA Corporation\NVSMI"


def has_library(system: System) -> bool:
    """Whether NVML's library is where the loader would find it."""
    if system.platform == "win32":
        return any(system.exists(rf"{folder}\nvml.dll") for folder in _windows_folders(system))
    listed = system.environment.get("LD_LIBRARY_PATH", "").split(":")
    folders = [*_LIBRARY_FOLDERS, *(folder for folder in listed if folder)]
    if any(system.exists(f"{folder}/{_LIBRARY}") for folder in folders):
        return True
    # What the loader knows: the names stand in its cache as plain text.
    cache = system.read("/etc/ld.so.cache")
    return isinstance(cache, str) and _LIBRARY in cache


def smi_program(system: System) -> str | None:
    """The path of nvidia-smi."""
    if system.platform == "win32":
        paths = [rf"{folder}\nvidia-smi.exe" for folder in _windows_folders(system)]
    else:
        listed = system.environment.get("PATH", "").split(":")
        folders = dict.fromkeys([*_SMI_FOLDERS, *(folder for folder in listed if folder)])
        paths = [f"{folder}/nvidia-smi" for folder in folders]
    return next((path for path in paths if system.exists(path)), None)


def parse_nvml(done: Completed) -> GpuReport | str:
    """The GPUs from what `system/nvml_child.py` printed, or why there are none."""
    if done.exit_code != 0:
        return f"NVML: {done.reason or ending(done)}"
    try:
        report = json.loads(done.stdout)
        if "error" in report:
            return str(report["error"])
        rows = [msgspec.convert({**row, "index": i}, Gpu) for i, row in enumerate(report["gpus"])]
        return _ordered(rows, report["driver"], report["cuda"], report["unread"])
    except (ValueError, TypeError, KeyError) as error:
        return f"NVML: cannot read its answer {done.stdout[:80]!r} ({error})"


def ending(done: Completed) -> str:
    """The end of a failed program: its signal (a shell adds 128), or the end of its output."""
    code = done.exit_code or 0
    signal = -code if code < 0 else code - 128
    if signal in (4, 6, 7, 8, 9, 11) or code > 0x80000000:
        return f"crashed (exit code {code})"
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines()]
    return f"{next((line for line in lines if line), 'no output')[:200]} (exit code {code})"


def _query_smi(system: System, program: str, why_not_nvml: str) -> GpuReport | str:
    # Drivers before 510 do not know compute_cap, and then report nothing at all.
    errors = []
    for fields in ((*_SMI_FIELDS, "compute_cap"), _SMI_FIELDS):
        argv = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        done = system.run(argv, SMI_TIMEOUT_S)
        result = parse_smi(done, fields)
        if isinstance(result, GpuReport):
            unread = {"cuda": f"nvidia-smi does not report it, and {why_not_nvml}"}
            argv = [program, f"--query-gpu={','.join(_SMI_STATE)}", "--format=csv,noheader"]
            result = with_state(result, system.run(argv, SMI_TIMEOUT_S))
            return msgspec.structs.replace(result, unread={**unread, **result.unread})
        errors.append(result)
        if "compute_cap" not in done.stdout + done.stderr:
            break
    return errors[-1]


def parse_smi(done: Completed, fields: tuple[str, ...]) -> GpuReport | str:
    """The GPUs from nvidia-smi's `csv,noheader,nounits`, or why there are none."""
    if done.exit_code != 0:
        return f"nvidia-smi: {done.reason or ending(done)}"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    rows = [row for row in csv.reader(lines, skipinitialspace=True) if len(row) == len(fields)]
    unread: dict[str, str] = {}
    if len(rows) < len(lines) or not lines:
        # A GPU that fell off its bus has a sentence in place of its row.
        bad = next((line for line in lines if line.count(",") != len(fields) - 1), "")
        unread["gpus"] = f"nvidia-smi: cannot read its answer {bad[:120]!r}"
    if not rows:
        return unread["gpus"]
    gpus, driver = [], None
    for index, row in enumerate(rows):
        cells = dict(zip(fields, (cell.strip() for cell in row), strict=True))
        driver = driver or _value(cells["driver_version"])
        gpu = Gpu(
            index=index,
            name=_value(cells["name"]),
            memory_bytes=_mebibytes(cells["memory.total"]),
            free_bytes=_mebibytes(cells["memory.free"]),
            compute_capability=_value(cells.get("compute_cap", "")),
            pci_bus_id=_value(cells["pci.bus_id"]),
            uuid=_value(cells["uuid"]),
        )
        gpus.append(gpu)
        for field, source in _SOURCES.items():
            if getattr(gpu, field) is None:
                value = cells.get(source, "this driver does not support the query")
                unread[f"gpus.{index}.{field}"] = f"nvidia-smi: {value}"
    return _ordered(gpus, driver, None, unread)


def with_state(report: GpuReport, done: Completed) -> GpuReport:
    """The GPUs with what nvidia-smi's second list reports about them, matched by PCI bus id."""
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    state = {row[0].strip(): [cell.strip() for cell in row] for row in rows
             if len(row) == len(_SMI_STATE)}  # fmt: skip
    unread = dict(report.unread)
    gpus = []
    for gpu in report.gpus:
        cells = state.get(gpu.pci_bus_id or "", [""] * len(_SMI_STATE))
        gpu = msgspec.structs.replace(
            gpu,
            driver_model=_value(cells[1]),
            # A card that cannot be cut has [N/A] here.
            is_mig_on=cells[2] == "Enabled" if cells[2] else None,
            is_persistence_on=_is_enabled(cells[3]),
            has_display=_is_enabled(cells[4]),
        )
        gpus.append(gpu)
        why = f"nvidia-smi: {done.reason or 'not reported'}"
        unread |= {f"gpus.{gpu.index}.{name}": why for name in _STATE if getattr(gpu, name) is None}
    return msgspec.structs.replace(report, gpus=tuple(gpus), unread=unread)


def _is_enabled(cell: str) -> bool | None:
    return {"Enabled": True, "Disabled": False, "Yes": True, "No": False}.get(cell)


_SOURCES = {
    "name": "name", "memory_bytes": "memory.total", "free_bytes": "memory.free",
    "compute_capability": "compute_cap", "pci_bus_id": "pci.bus_id", "uuid": "uuid",
}  # fmt: skip


def _value(cell: str) -> str | None:
    # [N/A], [Not Supported], [Unknown Error] ...
    return None if not cell or cell.startswith("[") else cell


def _mebibytes(cell: str) -> int | None:
    return int(cell) * 2**20 if cell.isdigit() else None


def _ordered(
    gpus: list[Gpu], driver: str | None, cuda: str | None, unread: dict[str, Any]
) -> GpuReport:
    """The GPUs in the order of their PCI bus, with indices and reasons that follow it."""
    order = sorted(range(len(gpus)), key=lambda index: (gpus[index].pci_bus_id or "~", index))
    renumbered = {f"gpus.{old}.": f"gpus.{new}." for new, old in enumerate(order)}
    return GpuReport(
        gpus=tuple(msgspec.structs.replace(gpus[old], index=new) for new, old in enumerate(order)),
        driver=driver,
        cuda=cuda,
        unread=dict(_moved(unread, renumbered)),
    )


def _moved(unread: dict[str, str], renumbered: dict[str, str]) -> Iterator[tuple[str, str]]:
    for path, reason in unread.items():
        prefix = next((old for old in renumbered if path.startswith(old)), None)
        yield (renumbered[prefix] + path.removeprefix(prefix) if prefix else path), reason
