"""Windows, WSL and what lies between it and the GPU."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    wsl_clock_skew,
    wsl_distro_cuda_toolkit,
    wsl_dns_broken,
    wsl_dxg_bridge_failing,
    wsl_feature_not_enabled,
    wsl_gpu_in_tcc_mode,
    wsl_gpu_stack_incomplete,
    wsl_host_disk_full,
    wsl_kernel_too_old,
    wsl_libcuda_not_on_loader_path,
    wsl_linux_driver_installed_inside,
    wsl_memory_limit,
    wsl_mnt_drive_problem,
    wsl_multi_gpu_init_out_of_memory,
    wsl_nvidia_driver_bug_segfault,
    wsl_pinned_memory_limit,
    wsl_portproxy_stale,
    wsl_restart_needed,
    wsl_sparse_disk_set,
    wsl_version_1,
    wsl_virtualization_disabled,
    wsl_windows_build_unsuitable,
)

RULES: tuple[Rule, ...] = (
    wsl_version_1.RULE,
    wsl_virtualization_disabled.RULE,
    wsl_feature_not_enabled.RULE,
    wsl_windows_build_unsuitable.RULE,
    wsl_linux_driver_installed_inside.RULE,
    wsl_gpu_in_tcc_mode.RULE,
    wsl_gpu_stack_incomplete.RULE,
    wsl_libcuda_not_on_loader_path.RULE,
    wsl_dxg_bridge_failing.RULE,
    wsl_nvidia_driver_bug_segfault.RULE,
    wsl_multi_gpu_init_out_of_memory.RULE,
    wsl_pinned_memory_limit.RULE,
    wsl_memory_limit.RULE,
    wsl_dns_broken.RULE,
    wsl_mnt_drive_problem.RULE,
    wsl_restart_needed.RULE,
    wsl_clock_skew.RULE,
    wsl_host_disk_full.RULE,
    wsl_distro_cuda_toolkit.RULE,
    wsl_portproxy_stale.RULE,
    wsl_sparse_disk_set.RULE,
    wsl_kernel_too_old.RULE,
)
