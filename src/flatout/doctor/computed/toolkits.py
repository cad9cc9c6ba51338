"""Facts about compilers and CUDA toolkits."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact
from flatout.schema.machine import Machine

# The probe of variables says only whether a toolkit is in that folder.
_NO_TOOLKIT = "false"


def cuda_path_has_no_toolkit(machine: Machine) -> Facts:
    """CUDA_PATH or CUDA_HOME names a folder without nvcc."""
    return tuple(
        part
        for name in ("CUDA_PATH", "CUDA_HOME")
        if (machine.variables or {}).get(name) == _NO_TOOLKIT
        for part in fact(f"{name} names a folder without bin/nvcc", "the environment")
    )
