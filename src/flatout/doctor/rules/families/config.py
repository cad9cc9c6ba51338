"""Settings that do not match the machine."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    allocator_setting_invalid,
    checkpoint_names_absent_gpu,
    cublas_workspace_not_set,
    cuda_in_forked_process,
    cuda_mps_not_running,
    cuda_visible_devices_wrong,
    device_name_invalid,
    files_on_slow_file_system,
    flash_attention_unsupported_gpu,
    gpu_device_permission_denied,
    gpu_lacks_precision,
    persistence_mode_off,
    tensorflow_devices_set_too_late,
    wsl_gpu_switched_off,
)

RULES: tuple[Rule, ...] = (
    cuda_visible_devices_wrong.RULE,
    gpu_device_permission_denied.RULE,
    wsl_gpu_switched_off.RULE,
    cuda_in_forked_process.RULE,
    cuda_mps_not_running.RULE,
    gpu_lacks_precision.RULE,
    flash_attention_unsupported_gpu.RULE,
    checkpoint_names_absent_gpu.RULE,
    device_name_invalid.RULE,
    allocator_setting_invalid.RULE,
    tensorflow_devices_set_too_late.RULE,
    cublas_workspace_not_set.RULE,
    persistence_mode_off.RULE,
    files_on_slow_file_system.RULE,
)
