"""Limits and environment variables of a process."""

from __future__ import annotations

import re

from flatout.schema.environment_facts import ProcessLimits
from flatout.system.host_system import System, Unread

_ROWS = {
    "open_files": "Max open files",
    "processes": "Max processes",
    "locked_bytes": "Max locked memory",
}


def probe_limits(system: System) -> tuple[ProcessLimits | None, dict[str, str]]:
    """The soft limits, and why one is None; None altogether where there are no such limits."""
    if system.platform != "linux":
        return None, {}
    text = system.read("/proc/self/limits")
    if isinstance(text, Unread):
        return None, {"limits": text.reason}
    limits = parse_limits(text)
    reasons = {f"limits.{field}": "unlimited" for field in _ROWS if getattr(limits, field) is None}
    return limits, reasons


def parse_limits(text: str) -> ProcessLimits:
    """The soft limits in /proc/self/limits."""
    matches = {
        field: re.search(rf"^{name}\s+(\d+)\s", text, re.MULTILINE) for field, name in _ROWS.items()
    }
    return ProcessLimits(**{field: int(match[1]) for field, match in matches.items() if match})


# Which GPUs are seen, how memory is taken, how ranks talk. No variable that holds a name or a path.
NAMES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE", "KMP_DUPLICATE_LIB_OK", "OMP_NUM_THREADS", "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_PREALLOCATE", "PYTHONNOUSERSITE", "JAX_PLATFORMS",
)  # fmt: skip


# They hold a path, so only whether a toolkit is there is read.
_TOOLKIT_FOLDERS = ("CUDA_PATH", "CUDA_HOME")


def probe_variables(system: System) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that are set, with their values; none of them is unknown."""
    environment = system.environment
    values = {name: environment[name] for name in NAMES if name in environment}
    slash, program = ("\\", "nvcc.exe") if system.platform == "win32" else ("/", "nvcc")
    for name in _TOOLKIT_FOLDERS:
        folder = environment.get(name, "").rstrip(slash)
        if folder:
            is_there = system.exists(f"{folder}{slash}bin{slash}{program}")
            values[name] = "true" if is_there else "false"
    return values, {}
