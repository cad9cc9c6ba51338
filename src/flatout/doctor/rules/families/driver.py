"""The NVIDIA driver on the host."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    cuda_broken_after_suspend,
    driver_library_version_mismatch,
    driver_too_old_for_cuda_runtime,
    fabric_manager_not_running,
    host_nvidia_driver_missing,
    mig_device_selection,
    nouveau_owns_gpu,
    nvidia_module_blacklisted,
    nvidia_module_not_built_for_kernel,
    secure_boot_rejects_module,
)

RULES: tuple[Rule, ...] = (
    driver_too_old_for_cuda_runtime.RULE,
    driver_library_version_mismatch.RULE,
    nvidia_module_not_built_for_kernel.RULE,
    nvidia_module_blacklisted.RULE,
    nouveau_owns_gpu.RULE,
    secure_boot_rejects_module.RULE,
    host_nvidia_driver_missing.RULE,
    cuda_broken_after_suspend.RULE,
    fabric_manager_not_running.RULE,
    mig_device_selection.RULE,
)
