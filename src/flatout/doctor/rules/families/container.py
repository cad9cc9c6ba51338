"""Docker, Podman, Kubernetes, and GPUs in containers."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    cdi_spec_stale,
    container_gpu_lost_after_daemon_reload,
    container_image_tag_missing,
    container_image_wrong_platform,
    container_needs_newer_host_driver,
    container_started_without_gpu,
    cuda_forward_compat_on_geforce,
    cuda_stub_library_loaded,
    docker_daemon_not_running,
    docker_daemon_settings_invalid,
    docker_desktop_wsl_integration_off,
    docker_gpus_option_unquoted,
    docker_installed_as_snap,
    docker_nvidia_runtime_not_configured,
    docker_nvidia_toolkit_missing,
    docker_socket_permission_denied,
    docker_too_old_for_gpus,
    image_contains_driver_libraries,
    kubernetes_gpu_not_schedulable,
    nvidia_runtime_no_cgroups_wrong,
    nvidia_toolkit_ldconfig_path_wrong,
    nvidia_toolkit_too_old_for_cgroup_v2,
)

RULES: tuple[Rule, ...] = (
    docker_daemon_not_running.RULE,
    docker_daemon_settings_invalid.RULE,
    docker_socket_permission_denied.RULE,
    docker_desktop_wsl_integration_off.RULE,
    docker_installed_as_snap.RULE,
    docker_nvidia_toolkit_missing.RULE,
    docker_nvidia_runtime_not_configured.RULE,
    nvidia_runtime_no_cgroups_wrong.RULE,
    nvidia_toolkit_too_old_for_cgroup_v2.RULE,
    nvidia_toolkit_ldconfig_path_wrong.RULE,
    cdi_spec_stale.RULE,
    docker_too_old_for_gpus.RULE,
    docker_gpus_option_unquoted.RULE,
    container_started_without_gpu.RULE,
    container_gpu_lost_after_daemon_reload.RULE,
    container_needs_newer_host_driver.RULE,
    cuda_forward_compat_on_geforce.RULE,
    cuda_stub_library_loaded.RULE,
    image_contains_driver_libraries.RULE,
    container_image_tag_missing.RULE,
    container_image_wrong_platform.RULE,
    kubernetes_gpu_not_schedulable.RULE,
)
