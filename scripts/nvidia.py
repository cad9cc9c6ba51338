"""The NVIDIA GPUs and driver of this machine, from nvidia-smi. Standard library only."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Under WSL a broken driver can make nvidia-smi hang.
_LIMIT_S = 10.0
_FIELDS = "driver_version,compute_cap,name"


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """driver, and for each GPU its capability (like `8.6`) and name; or why there are none."""

    driver: str | None = None
    capabilities: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    why_none: str | None = None


def os_name() -> Literal["linux", "wsl", "windows", "macos"]:
    """The operating system; WSL counts separately, because it uses the Windows driver."""
    if sys.platform == "win32":
        return "windows"
    if sys.platform == "darwin":
        return "macos"
    return "wsl" if "microsoft" in platform.release().lower() else "linux"


def read_gpus() -> Gpus:
    """Asks nvidia-smi, with a time limit."""
    program = _nvidia_smi()
    if program is None:
        return Gpus(why_none="no NVIDIA GPU was found (there is no nvidia-smi)")
    try:
        done = subprocess.run(
            [program, f"--query-gpu={_FIELDS}", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Gpus(why_none=f"{program} did not respond within {_LIMIT_S:.0f} s")
    except OSError as error:
        return Gpus(why_none=f"cannot run {program}: {error.strerror or error}")
    return parse_gpus(done.stdout, done.returncode)


def parse_gpus(text: str, exit_code: int) -> Gpus:
    """What nvidia-smi printed, one line for each GPU: `581.42, 8.6, NVIDIA GeForce RTX 3070`."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "compute_cap" in text:
        return Gpus(
            why_none="nvidia-smi does not know `compute_cap`: the driver is older than 510; "
            "with a newer one torch could use the GPU"
        )
    if exit_code != 0 or not lines:
        said = lines[0] if lines else "nothing"
        return Gpus(why_none=f"nvidia-smi found no usable GPU; its output: {said}")
    rows = [[part.strip() for part in line.split(",", 2)] for line in lines]
    if any(len(row) != 3 or not _is_number(row[0][:3]) or not _is_number(row[1]) for row in rows):
        return Gpus(why_none=f"nvidia-smi reported no driver and compute capability: {lines[0]}")
    return Gpus(
        driver=rows[0][0],
        capabilities=tuple(row[1] for row in rows),
        names=tuple(row[2] for row in rows),
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _nvidia_smi() -> str | None:
    # In services and over ssh, WSL's folder is often not on PATH.
    windows = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "nvidia-smi.exe"
    places = ["/usr/lib/wsl/lib/nvidia-smi", "/usr/bin/nvidia-smi", str(windows)]
    found = [place for place in places if Path(place).is_file()]
    return found[0] if found else shutil.which("nvidia-smi")
