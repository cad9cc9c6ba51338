"""Host and GPU memory."""

from __future__ import annotations

from flatout.doctor.rule import Rule
from flatout.doctor.rules import (
    gpu_busy_in_exclusive_mode,
    gpu_memory_fragmentation,
    gpu_memory_spilled_to_host,
    gpu_memory_too_small,
    gpu_memory_used_by_other_process,
    host_memory_exhausted,
    host_oom_killer,
    memlock_limit_too_low,
    memory_limited_by_group,
    shm_too_small,
    swap_off,
    thread_limit_reached,
    too_many_open_files,
    windows_paging_file_too_small,
)

RULES: tuple[Rule, ...] = (
    gpu_memory_too_small.RULE,
    gpu_memory_fragmentation.RULE,
    gpu_memory_used_by_other_process.RULE,
    gpu_memory_spilled_to_host.RULE,
    shm_too_small.RULE,
    host_oom_killer.RULE,
    windows_paging_file_too_small.RULE,
    host_memory_exhausted.RULE,
    too_many_open_files.RULE,
    thread_limit_reached.RULE,
    memlock_limit_too_low.RULE,
    gpu_busy_in_exclusive_mode.RULE,
    swap_off.RULE,
    memory_limited_by_group.RULE,
)
