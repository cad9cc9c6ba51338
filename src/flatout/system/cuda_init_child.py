"""Starts CUDA by itself and prints JSON: `python -P -m flatout.system.cuda_init_child`.

In a process of its own, because a driver can crash or hang. No framework: what fails here fails for
all of them. Only for `flatout doctor --deep`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def start_cuda() -> dict[str, Any]:
    """path, error (a name, None where it started), cuda, num_devices."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return {"error": str(error)}
    report: dict[str, Any] = {"path": _loaded_path()}
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)) == 0:
        report["cuda"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    code = library.cuInit(0)
    if code != 0:
        return {**report, "error": _name(library, code)}
    if library.cuDeviceGetCount(ctypes.byref(number)) == 0:
        report["num_devices"] = number.value
    return report


def _name(library: Any, code: int) -> str:
    name = ctypes.c_char_p()
    if library.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value:
        return f"{name.value.decode(errors='replace')} ({code})"
    return f"CUDA error {code}"


def _loaded_path() -> str | None:
    """The file behind the name: the loader may have several to choose from."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = [line.split(maxsplit=5)[-1].strip() for line in file if "libcuda.so" in line]
    except OSError:
        return None
    return paths[0] if paths else None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(start_cuda()))
