"""Environment variables that CUDA and frameworks obey."""

from __future__ import annotations

from flatout.system.system import System

# Which GPUs are seen, how memory is taken, how ranks talk. No variable that holds a name or a path.
NAMES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE", "KMP_DUPLICATE_LIB_OK", "OMP_NUM_THREADS", "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_PREALLOCATE", "PYTHONNOUSERSITE", "JAX_PLATFORMS",
)  # fmt: skip


def probe_variables(system: System) -> tuple[dict[str, str], dict[str, str]]:
    """Those that are set, with their values; none of them is unknown."""
    environment = system.environment
    return {name: environment[name] for name in NAMES if name in environment}, {}
