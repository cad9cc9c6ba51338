"""Queries NVML for the GPUs and prints JSON: `python -P -m flatout.system.nvml_child`.

In a process of its own, because NVML can crash or hang under WSL. A field that one card does not
tell is left out, with its reason under `unread`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

# Under WSL the real library is here; a Linux driver that was installed by mistake hides it.
WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"

_FIELDS = (
    "name", "memory_bytes", "free_bytes", "compute_capability", "pci_bus_id", "uuid",
    "driver_model", "is_mig_on", "num_mig_instances", "is_persistence_on", "has_display",
    "num_processes", "throttle_reasons",
)  # fmt: skip
_DRIVER_MODELS = {0: "WDDM", 1: "TCC", 2: "MCDM"}
# Bits of nvmlClocksEventReasons, from the lowest.
# Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_THROTTLE_REASONS = (
    "idle", "application-clocks", "power-cap", "hardware-slowdown", "sync-boost",
    "thermal-slowdown", "hardware-thermal-slowdown", "power-brake", "display-clocks",
)  # fmt: skip


def read_gpus() -> dict[str, Any]:
    """driver, cuda, gpus (a dict each) and unread; `error` instead where NVML does not start."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        return {"error": f"nvidia-ml-py is not installed: {error}"}
    if os.path.exists(WSL_LIBRARY):
        # Loaded first, it is the one that is found by its name afterwards.
        ctypes.CDLL(WSL_LIBRARY)
    unread: dict[str, str] = {}

    def query(call: Callable[[], Any], *paths: str) -> Any:
        try:
            value = call()
        except Exception as error:  # noqa: BLE001 - one that is older than a question says it so
            unread.update(dict.fromkeys(paths, f"NVML: {error}"))
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": f"NVML: {error}"}
    num_gpus = query(pynvml.nvmlDeviceGetCount, "gpus") or 0
    version = query(pynvml.nvmlSystemGetCudaDriverVersion_v2, "cuda")
    return {
        "driver": query(pynvml.nvmlSystemGetDriverVersion, "driver"),
        "cuda": f"{version // 1000}.{version % 1000 // 10}" if version else None,
        "gpus": [_read_gpu(pynvml, index, query) for index in range(num_gpus)],
        "unread": unread,
    }


def _read_gpu(nvml: Any, index: int, query: Callable[..., Any]) -> dict[str, Any]:
    at = {field: f"gpus.{index}.{field}" for field in _FIELDS}
    handle = query(lambda: nvml.nvmlDeviceGetHandleByIndex(index), *at.values())
    if handle is None:
        return {}
    memory = query(
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle), at["memory_bytes"], at["free_bytes"]
    )
    capability = query(
        lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), at["compute_capability"]
    )
    return {
        "name": query(lambda: nvml.nvmlDeviceGetName(handle), at["name"]),
        "memory_bytes": memory and int(memory.total),
        "free_bytes": memory and int(memory.free),
        "compute_capability": capability and "{}.{}".format(*capability),
        "pci_bus_id": query(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId, at["pci_bus_id"]),
        "uuid": query(lambda: nvml.nvmlDeviceGetUUID(handle), at["uuid"]),
        **_read_state(nvml, handle, at, query),
    }


def _read_state(
    nvml: Any, handle: Any, at: dict[str, str], query: Callable[..., Any]
) -> dict[str, Any]:
    """Facts that change from minute to minute; most cards report only some."""

    def mig_mode() -> bool:
        try:
            return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
        except nvml.NVMLError_NotSupported:
            return False  # A card that cannot be cut.

    def num_mig_instances() -> int:
        count = 0
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except nvml.NVMLError_NotFound:
                continue
            count += 1
        return count

    is_mig_on = query(mig_mode, at["is_mig_on"])
    model = query(lambda: nvml.nvmlDeviceGetDriverModel(handle)[0], at["driver_model"])
    bits = query(
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), at["throttle_reasons"]
    )
    return {
        "driver_model": _DRIVER_MODELS.get(model),
        "is_mig_on": is_mig_on,
        "num_mig_instances": query(num_mig_instances, at["num_mig_instances"])
        if is_mig_on
        else None,
        "is_persistence_on": query(
            lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)), at["is_persistence_on"]
        ),
        "has_display": query(
            lambda: bool(nvml.nvmlDeviceGetDisplayActive(handle)), at["has_display"]
        ),
        "num_processes": query(
            lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)), at["num_processes"]
        ),
        "throttle_reasons": None if bits is None else throttle_reasons(bits),
    }


def throttle_reasons(bits: int) -> list[str]:
    """The names of NVML's reasons for clocks below the highest."""
    return [name for bit, name in enumerate(_THROTTLE_REASONS) if bits >> bit & 1]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_gpus()))
