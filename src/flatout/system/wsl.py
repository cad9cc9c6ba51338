"""Whether Windows' driver runs the GPU: it moves memory out of the GPU rather than refuse it."""

from __future__ import annotations

import platform
import sys
from pathlib import Path


def parse_wsl(kernel: str, is_wsl_registered: bool = False) -> int | None:
    """1 or 2 from a kernel's release, None for a Linux that is not WSL.

    WSL 1 has no kernel of its own and reports 4.4.0-BUILD-Microsoft. A kernel someone built for
    WSL 2 may bear any name: it is known by WSL's entry among the binary formats.
    """
    name = kernel.lower()
    if "microsoft" in name:
        return 1 if name.startswith("4.4.") and "standard" not in name else 2
    return 2 if is_wsl_registered or "wsl2" in name else None


def is_wsl() -> bool:
    """Whether this is a Linux under WSL 2."""
    if sys.platform != "linux":
        return False
    is_registered = Path("/proc/sys/fs/binfmt_misc/WSLInterop").exists()
    return parse_wsl(platform.release(), is_registered) == 2


def has_windows_driver() -> bool:
    """Whether the GPU's driver is that of Windows: there, and under WSL 2."""
    return sys.platform == "win32" or is_wsl()
