"""The processor: its name, cores, what of them this process may use, and its instruction sets."""

from __future__ import annotations

import re

from flatout.schema.machine import Cpu
from flatout.system.host_system import System, Unread
from flatout.system.probes.cgroup import cpu_quota

# Those that decide which kernels a framework picks, by the kernel's names (x86, then ARM). The
# first distinguishes an old processor, which has no other, from an unknown one.
FEATURES = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16",
    "asimd", "asimdhp", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip


def probe_cpu(system: System) -> tuple[Cpu, dict[str, str]]:
    """The processor, and why what is None is None."""
    calls = system.calls()
    quota = cpu_quota(system) if system.platform == "linux" else None
    # Half a processor more would only be throttled, so a quota is rounded down.
    num_threads = calls.num_threads if quota is None else min(calls.num_threads, max(1, int(quota)))
    if system.platform != "linux":
        cpu = Cpu(name=calls.cpu_name, num_cores=calls.num_cores, num_threads=num_threads)
        unread = {"cpu.features": "this system has no readable list of them"}
        reason = f"{system.platform} did not report it"
    else:
        text = system.read("/proc/cpuinfo")
        unread = {}
        reason = text.reason if isinstance(text, Unread) else "/proc/cpuinfo does not show it"
        cpu = parse_cpuinfo("" if isinstance(text, Unread) else text, num_threads)
        if cpu.num_cores is None:
            cpu = Cpu(
                name=cpu.name,
                num_cores=_cores_by_topology(system),
                num_threads=num_threads,
                features=cpu.features,
            )
    if not cpu.features:
        unread.setdefault("cpu.features", reason)
    unread |= {
        f"cpu.{field}": reason for field in ("name", "num_cores") if getattr(cpu, field) is None
    }
    return cpu, unread


def parse_cpuinfo(text: str, num_threads: int) -> Cpu:
    """A processor from the text of /proc/cpuinfo."""
    fields: dict[str, str] = {}
    cores: set[tuple[str, str]] = set()
    socket = ""
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        fields.setdefault(key, value)
        if key == "physical id":
            socket = value
        elif key == "core id":
            cores.add((socket, value))
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Cpu(
        name=fields.get("model name") or None,
        num_cores=len(cores) or None,
        num_threads=num_threads,
        features=tuple(name for name in FEATURES if name in flags),
    )


def _cores_by_topology(system: System) -> int | None:
    # ARM's /proc/cpuinfo numbers no cores.
    folder = "/sys/devices/system/cpu"
    siblings = {
        system.read(f"{folder}/{name}/topology/thread_siblings_list")
        for name in system.list_folder(folder)
        if re.fullmatch(r"cpu\d+", name)
    }
    return len({text for text in siblings if isinstance(text, str)}) or None
