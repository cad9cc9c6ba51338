"""Asks NVML about the GPUs and prints JSON: `python -P -m flatout.system.nvml`.

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

# Under WSL the real library lies here; a Linux driver that was installed by mistake hides it.
_WSL_LIBRARY = "/usr/lib/wsl/lib/libnvidia-ml.so.1"

_FIELDS = ("name", "memory_bytes", "free_bytes", "compute_capability", "pci_bus_id", "uuid")


def read_gpus() -> dict[str, Any]:
    """driver, cuda, gpus (a dict each) and unread; `error` instead where NVML does not start."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        return {"error": f"nvidia-ml-py is not installed: {error}"}
    if os.path.exists(_WSL_LIBRARY):
        # Loaded first, it is the one that is found by its name afterwards.
        ctypes.CDLL(_WSL_LIBRARY)
    unread: dict[str, str] = {}

    def ask(question: Callable[[], Any], *paths: str) -> Any:
        try:
            answer = question()
        except (pynvml.NVMLError, UnicodeDecodeError, AttributeError) as error:
            unread.update(dict.fromkeys(paths, f"NVML: {error}"))
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": f"NVML: {error}"}
    num_gpus = ask(pynvml.nvmlDeviceGetCount, "gpus") or 0
    version = ask(pynvml.nvmlSystemGetCudaDriverVersion_v2, "cuda")
    return {
        "driver": ask(pynvml.nvmlSystemGetDriverVersion, "driver"),
        "cuda": f"{version // 1000}.{version % 1000 // 10}" if version else None,
        "gpus": [_read_gpu(pynvml, index, ask) for index in range(num_gpus)],
        "unread": unread,
    }


def _read_gpu(nvml: Any, index: int, ask: Callable[..., Any]) -> dict[str, Any]:
    at = {field: f"gpus.{index}.{field}" for field in _FIELDS}
    handle = ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index), *at.values())
    if handle is None:
        return {}
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle), at["memory_bytes"], at["free_bytes"])
    capability = ask(
        lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), at["compute_capability"]
    )
    return {
        "name": ask(lambda: nvml.nvmlDeviceGetName(handle), at["name"]),
        "memory_bytes": memory and int(memory.total),
        "free_bytes": memory and int(memory.free),
        "compute_capability": capability and "{}.{}".format(*capability),
        "pci_bus_id": ask(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId, at["pci_bus_id"]),
        "uuid": ask(lambda: nvml.nvmlDeviceGetUUID(handle), at["uuid"]),
        # Not a fact of the machine: asked by the engine, which knows what to do without it.
        "has_display": ask(lambda: bool(nvml.nvmlDeviceGetDisplayActive(handle))),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read_gpus()))
