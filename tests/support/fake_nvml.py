"""A driver's NVML made of a few lines of C: the real binding, the real loader, real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.system.host_system import LocalSystem
from flatout.system.probes.gpus import probe_gpus

_SOURCE = Path(__file__).with_name("fake_nvml.c")


def compile_nvml(folder: Path, *, is_old: bool = False) -> Path:
    """The folder, for LD_LIBRARY_PATH; skips the test where there is no compiler, or a GPU."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler called cc: it makes a driver for the test")
    if probe_gpus(LocalSystem()).gpus:
        pytest.skip("needs a machine without a real driver, which would be asked as well")
    folder.mkdir(parents=True, exist_ok=True)
    library = str(folder / "libnvidia-ml.so.1")
    options = ["-DOLD"] if is_old else []
    command = [compiler, "-shared", "-fPIC", *options, "-o", library, str(_SOURCE)]
    subprocess.run(command, check=True, timeout=300)
    return folder
