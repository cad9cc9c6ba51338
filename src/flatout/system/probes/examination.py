"""All probes of the doctor, in parallel: the machine with its surroundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from flatout.schema.machine import Host, Machine
from flatout.system.host_system import System, Unread
from flatout.system.probes import environments as python_environments
from flatout.system.probes.cpu import probe_cpu
from flatout.system.probes.disks import probe_disks
from flatout.system.probes.distribution import probe_packages
from flatout.system.probes.engines import probe_engines
from flatout.system.probes.gpus import GpuReport, probe_gpus
from flatout.system.probes.host import probe_host
from flatout.system.probes.libraries import probe_libraries
from flatout.system.probes.memory import probe_memory
from flatout.system.probes.module import probe_module
from flatout.system.probes.network import own_addresses, probe_network
from flatout.system.probes.process import probe_limits, probe_variables
from flatout.system.probes.toolkits import probe_toolkits
from flatout.system.probes.windows import PATIENT_TIMEOUT_S, probe_windows
from flatout.system.probes.working import start_cuda, try_environment
from flatout.system.probes.wsl import find_system32, probe_wsl
from flatout.system.timeout_threads import run_together

# A family that is not read by then is left behind: on a healthy machine all of them take less than
# 2 s together. The programs of Windows and Docker have stricter limits of their own.
TIMEOUT_S = 10.0
# What `glance` may take: a user waits for the text that is read in the meantime.
GLANCE_S = 0.4

Probed = tuple[Any, dict[str, str]]
Tasks = dict[str, Callable[[], Probed]]


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and what its programs printed about the GPU that is not a fact by itself."""

    machine: Machine
    output: str = ""


def examine(system: System, python: str | None = None, *, is_deep: bool = False) -> Examination:
    """Reads all families of facts, each in a thread of its own.

    Args:
        system: the machine, or a recording of one.
        python: the interpreter whose environment is of interest; flatout's own where None.
        is_deep: the GPU is made to work, names are looked up, and slow programs waited for.
    """
    python = python or system.python
    host, unread = probe_host(system)
    values = _run(_tasks(system, host, python, is_deep=is_deep), unread, is_deep=is_deep)
    read: list[python_environments.ReadEnvironment] = values.pop("environments", [])
    site = read[0].site if read else None
    values |= _run({"libraries": lambda: probe_libraries(system, site)}, unread, is_deep=is_deep)
    output = ""
    if is_deep and read:
        tried, output = try_environment(system, read[0].environment)
        read[0] = msgspec.structs.replace(read[0], environment=tried)
        if tried.can_use_gpu is not None:
            unread.pop("environments.0.can_use_gpu", None)
    return Examination(machine=_machine(system, host, read, values, unread), output=output)


def glance(system: System, python: str | None = None) -> Machine:
    """The facts that can be read within GLANCE_S: without programs of Windows, container engines.

    Args:
        system: the machine, or a recording of one.
        python: the interpreter whose environment is of interest; flatout's own where None.
    """
    python = python or system.python
    host, unread = probe_host(system)
    tasks = _tasks(system, host, python, is_deep=False)
    for slow in ("windows", "engines"):
        if tasks.pop(slow, None):
            unread[slow] = "not queried in the quick check"
    if host.wsl:
        version = host.wsl
        tasks["wsl"] = lambda: probe_wsl(system, version, None)
    tasks["libraries"] = lambda: probe_libraries(system, None)
    values = _run(tasks, unread, limit_s=GLANCE_S)
    read: list[python_environments.ReadEnvironment] = values.pop("environments", [])
    return _machine(system, host, read, values, unread)


def _machine(
    system: System,
    host: Host,
    read: list[python_environments.ReadEnvironment],
    values: dict[str, Any],
    unread: dict[str, str],
) -> Machine:
    gpus: GpuReport = values.pop("gpus", GpuReport())
    windows, skew_s = values.pop("windows", (None, None))
    first = read[0].environment.python if read else system.python
    machine = Machine(
        read_at=system.now(),
        host=host,
        gpus=gpus.gpus,
        driver=gpus.driver,
        cuda=gpus.cuda,
        python=first,
        frameworks=python_environments.frameworks_of(read),
        environments=tuple(report.environment for report in read) if read else None,
        windows=windows,
        unread=unread,
        **values,
    )
    return _completed(machine, skew_s)


def _tasks(system: System, host: Host, python: str, *, is_deep: bool) -> Tasks:
    """The probes that run in parallel; only those that apply to this system."""

    def read_gpus() -> Probed:
        gpus = probe_gpus(system)
        return gpus, gpus.unread

    def read_environments() -> Probed:
        read = python_environments.probe_environments(system, python, is_wsl=bool(host.wsl))
        return read, python_environments.placed(read)

    tasks: Tasks = {
        "cpu": lambda: probe_cpu(system),
        "memory": lambda: probe_memory(system),
        "gpus": read_gpus,
        "toolkits": lambda: probe_toolkits(system),
        "disks": lambda: probe_disks(system, is_deep=is_deep),
        "environments": read_environments,
        "engines": lambda: probe_engines(system),
        "network": lambda: probe_network(system, is_deep=is_deep),
        "limits": lambda: probe_limits(system),
        "variables": lambda: probe_variables(system),
    }
    if host.os == "linux":
        tasks["packages"] = lambda: probe_packages(system)
    if host.wsl:
        version = host.wsl
        tasks["wsl"] = lambda: probe_wsl(system, version, find_system32(system))
    elif host.os == "linux":
        tasks["module"] = lambda: probe_module(system)
    if host.wsl or host.os == "windows":
        tasks["windows"] = lambda: _read_windows(system, is_deep=is_deep)
    if is_deep:
        tasks["cuda_start"] = lambda: start_cuda(system)
    return tasks


def _run(
    tasks: Tasks, unread: dict[str, str], *, is_deep: bool = False, limit_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """The values of the tasks; why one is missing goes to `unread`."""
    longer = dict.fromkeys(("windows", "cuda_start", "disks"), PATIENT_TIMEOUT_S + 1)
    values = {}
    for name, result in run_together(tasks, limit_s, longer if is_deep else {}).items():
        if isinstance(result, Unread):
            unread[name] = result.reason
        else:
            values[name], more = result
            unread |= more
    return values


def _read_windows(system: System, *, is_deep: bool) -> Probed:
    folder = find_system32(system)
    if folder is None:
        return (None, None), {"windows": "Windows programs are not visible from here"}
    read = probe_windows(system, folder, own_addresses(system), is_patient=is_deep)
    return (read.windows, read.clock_skew_s), read.unread


def _completed(machine: Machine, skew_s: float | None) -> Machine:
    """The machine with the facts that one family reports about another."""
    unread = dict(machine.unread)
    changes: dict[str, Any] = {}
    if machine.windows and machine.windows.driver is None and machine.driver:
        # NVML reports it in WSL too, where it is Windows' driver that reports.
        changes["windows"] = msgspec.structs.replace(machine.windows, driver=machine.driver)
        unread.pop("windows.driver", None)
    persistence = [
        gpu.is_persistence_on for gpu in machine.gpus if gpu.is_persistence_on is not None
    ]
    if machine.module and persistence:
        changes["module"] = msgspec.structs.replace(
            machine.module, is_persistence_on=all(persistence)
        )
        unread.pop("module.is_persistence_on", None)
    if machine.network and machine.host.wsl and skew_s is not None:
        changes["network"] = msgspec.structs.replace(machine.network, clock_skew_s=skew_s)
        unread.pop("network.clock_skew_s", None)
    return msgspec.structs.replace(machine, unread=unread, **changes)
