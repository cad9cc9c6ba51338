"""A machine in a few lines, by part, with the families of rules that judge each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from flatout.schema.environment_facts import Disk
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text, counted_text

_MAIN = ("torch", "tensorflow", "paddlepaddle", "jax")
_WINDOWS_11 = 22000
# Fewer are any desktop's.
_LEAST_SHOWN_CPUS = 0.2


class MachineRow(msgspec.Struct, frozen=True):
    """A line: its label, its text, and the families of rules whose findings mark it.

    is_known: something was read; else it is not marked as ok.
    state: its state if no rule finds a problem with it.
    """

    label: str
    text: str
    families: tuple[str, ...] = ()
    is_known: bool = True
    state: str = "ok"


def machine_rows(machine: Machine, other_cpus: float | None = None) -> list[MachineRow]:
    """The doctor's summary of a machine, one line per part.

    other_cpus: CPUs that other programs keep busy; None if not measured.
    """
    rows = [
        *_system_rows(machine),
        *_processor_rows(machine, other_cpus),
        *_gpu_rows(machine),
        *_cuda_rows(machine),
        *_python_rows(machine),
        *_surroundings_rows(machine),
    ]
    return [row for row in rows if row.text]


def _system_rows(machine: Machine) -> Iterator[MachineRow]:
    host, windows = machine.host, machine.windows
    if host.wsl:
        build = windows.build if windows else None
        driver = machine.driver and f"driver {machine.driver}"
        yield MachineRow("Windows", _joined(build and _windows_name(build), driver))
        package = machine.wsl.package if machine.wsl else None
        version = f"{host.wsl} · {package}" if package else f"{host.wsl}"
        kernel = host.release and f"kernel {host.release.partition('-')[0]}"
        yield MachineRow("WSL", _joined(version, kernel, host.distribution), ("wsl",))
    else:
        yield MachineRow(
            "system", _joined(host.distribution or host.os, host.release), ("wsl", "config")
        )
    if host.container:
        yield MachineRow("container", host.container)


def _windows_name(build: str) -> str:
    parts = build.split(".")
    number = int(parts[2]) if len(parts) > 2 and parts[2].isdigit() else 0
    return f"{'11' if number >= _WINDOWS_11 else '10'} ({number})" if number else build


def _processor_rows(machine: Machine, other_cpus: float | None) -> Iterator[MachineRow]:
    num_threads = machine.cpu.num_threads
    threads = num_threads and counted_text(num_threads, "thread")
    is_known = bool(machine.cpu.name or threads)
    others, state = None, "ok"
    if num_threads and other_cpus is not None and other_cpus >= _LEAST_SHOWN_CPUS:
        others = f"other programs use {other_cpus:.1f} of {counted_text(num_threads, 'CPU')}"
        state = "busy" if other_cpus >= num_threads / 2 else "ok"
    text = _joined(machine.cpu.name or "not read", threads, others)
    yield MachineRow("CPU", text, is_known=is_known, state=state)
    limit, total = machine.memory.limit_bytes, machine.memory.total_bytes
    usable = limit or total
    free = machine.memory.available_bytes
    yield MachineRow(
        "memory",
        _joined(
            bytes_text(usable) if usable else None,
            free and f"{bytes_text(free)} free",
            limit and total and f"limited; the machine has {bytes_text(total)}",
        ),
        ("memory",),
    )


def _gpu_rows(machine: Machine) -> Iterator[MachineRow]:
    for gpu in machine.gpus:
        yield MachineRow(
            "GPU",
            _joined(
                gpu.name or "unknown",
                gpu.memory_bytes and bytes_text(gpu.memory_bytes),
                gpu.compute_capability and f"compute capability {gpu.compute_capability}",
                "MIG" if gpu.is_mig_on else None,
            ),
            ("hardware",),
        )
    why = machine.unread.get("gpus")
    if not machine.gpus:
        text = f"none: {why}" if why else "not read"
        yield MachineRow("GPU", text, ("hardware",), is_known=why is not None, state="")


def _cuda_rows(machine: Machine) -> Iterator[MachineRow]:
    cuda = machine.cuda and f"CUDA up to {machine.cuda}"
    if machine.driver and not machine.host.wsl:
        flavour = machine.module.flavour if machine.module else None
        yield MachineRow("driver", _joined(machine.driver, flavour, cuda), ("driver",))
    elif machine.driver:
        yield MachineRow("driver", _joined(machine.driver, cuda), ("driver",))
    else:
        is_known = "driver" in machine.unread
        yield MachineRow(
            "driver", "none" if is_known else "not read", ("driver",), is_known=is_known, state=""
        )
    paths = [library.path for library in machine.libraries or () if library.name == "libcuda"]
    folder = paths[0].rpartition("/")[0] or paths[0] if paths else None
    toolkits = [toolkit.version or "?" for toolkit in machine.toolkits or ()]
    yield MachineRow(
        "CUDA",
        _joined(
            folder and f"libcuda from {folder}",
            f"toolkit {', '.join(toolkits)}" if toolkits else None,
        ),
        ("driver",),
    )


def _python_rows(machine: Machine) -> Iterator[MachineRow]:
    first = next(iter(machine.environments or ()), None)
    frameworks = [
        f"{framework.name} {framework.version}"
        + (
            f" {framework.build}"
            if framework.build and framework.build not in framework.version
            else ""
        )
        for framework in machine.frameworks
        if framework.name in _MAIN
    ]
    is_known = first is not None or machine.python is not None
    none = "no framework" if is_known else "not read"
    tried = first.can_use_gpu if first else None
    worked = None if tried is None else "the GPU works" if tried else "the GPU does not work"
    yield MachineRow(
        "Python",
        _joined(
            _joined(first.version or "", first.kind) if first else None,
            *(frameworks or [none]),
            worked,
        ),
        ("framework", "install", "python"),
        is_known=is_known or bool(frameworks),
    )


def _surroundings_rows(machine: Machine) -> Iterator[MachineRow]:
    yield MachineRow("files", _joined(*_disk_texts(machine.disks or ())), ("config",))
    engines = [
        _joined(
            f"{engine.name} {engine.version or ''}".strip(),
            None if engine.is_running else "not running",
            "NVIDIA's runtime" if "nvidia" in (engine.runtimes or ()) else None,
        )
        for engine in machine.engines or ()
    ]
    yield MachineRow("containers", _joined(*engines), ("container",))
    network = machine.network
    if network:
        ports = ", ".join(map(str, network.busy_ports or ()))
        text = _joined("a proxy is set" if network.has_proxy else None,
                       ports and f"busy ports: {ports}")  # fmt: skip
        yield MachineRow("network", text or "no proxy", ("network", "distributed"))


def _disk_texts(disks: Sequence[Disk]) -> Iterator[str]:
    for disk in disks:
        if disk.role in ("project", "data", "shm") and disk.free_bytes is not None:
            kind = "a Windows drive" if disk.is_windows_drive else disk.kind or "disk"
            speed = disk.small_files_bytes_s
            measured = f", {bytes_text(speed)}/s with small files" if speed else ""
            yield f"{disk.role} on {kind}, {bytes_text(disk.free_bytes)} free{measured}"


def _joined(*parts: str | int | None) -> str:
    return " · ".join(str(part) for part in parts if part)
