"""The card, its power and its slot; processor, memory and disks."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    cpu_lacks_instructions,
    gpu_fallen_off_bus,
    gpu_firmware_not_responding,
    gpu_kernel_faulted,
    gpu_memory_ecc_error,
    gpu_needs_other_kernel_module,
    gpu_nvlink_failed,
    gpu_pci_address_space_missing,
    gpu_power_cable_missing,
    gpu_power_or_thermal_throttle,
    gpu_stopped_by_windows,
    gpu_unknown_to_driver,
    gpu_watchdog_timeout,
    host_hardware_error,
    pcie_link_errors,
    storage_device_failing,
    uvm_hmm_kernel_conflict,
    vgpu_not_licensed,
)

RULES: tuple[Rule, ...] = (
    gpu_fallen_off_bus.RULE,
    gpu_power_or_thermal_throttle.RULE,
    gpu_watchdog_timeout.RULE,
    gpu_memory_ecc_error.RULE,
    gpu_firmware_not_responding.RULE,
    gpu_nvlink_failed.RULE,
    gpu_pci_address_space_missing.RULE,
    gpu_needs_other_kernel_module.RULE,
    gpu_unknown_to_driver.RULE,
    gpu_power_cable_missing.RULE,
    gpu_stopped_by_windows.RULE,
    gpu_kernel_faulted.RULE,
    pcie_link_errors.RULE,
    cpu_lacks_instructions.RULE,
    storage_device_failing.RULE,
    host_hardware_error.RULE,
    vgpu_not_licensed.RULE,
    uvm_hmm_kernel_conflict.RULE,
)
