"""Memory: what the numbers in messages and the machine's limits show."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact
from flatout.doctor.rule import Case, RuleVerdict
from flatout.doctor.scan.gpu_memory import memory_from_text
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text, counted_text

_OUT_OF_MEMORY = (
    "torch-out-of-memory",
    "gpu-out-of-memory",
    "allocator-out-of-memory",
    "serving-out-of-memory",
)
_USED_BY_OTHERS = ("process-without-name", "little-memory-at-start", "share-not-free")
# TensorFlow's allocator is fragmented if this share of its memory is unused.
_FRAGMENTED_SHARE = 0.15


def too_small(case: Case) -> RuleVerdict | None:
    """Memory ran out; decided if the numbers show that this program filled the card."""
    if not case.sees(*_OUT_OF_MEMORY):
        return None
    memory = memory_from_text(case.signs)
    because = None
    if memory and memory.free is not None and memory.total is not None:
        amounts = (memory.requested, memory.free, memory.total)
        wanted, free, total = (f"{amount / 2**30:.2f}" for amount in amounts)
        because = f"it requested {wanted} GiB; {free} of {total} GiB were free"
    if case.sees(*_USED_BY_OTHERS):
        return RuleVerdict(certainty="possible", because=because)
    if memory and memory.total:
        has_other_cause = memory.is_fragmented or memory.is_used_by_others
        return RuleVerdict(certainty="possible" if has_other_cause else "decided", because=because)
    # Without numbers, another process may hold the memory.
    certainty = case.certainty("serving-out-of-memory")
    return RuleVerdict(certainty=certainty, because=because)


def fragmented(case: Case) -> RuleVerdict | None:
    """The requested size is less than the unused reserved memory, which is a large share."""
    memory = memory_from_text(case.signs)
    if not (memory and memory.is_fragmented) and not _is_bfc_fragmented(case):
        return None
    because = None
    if memory:
        because = f"{memory.unallocated / 2**30:.2f} GiB are reserved but not allocated"
    return RuleVerdict(certainty="decided", because=because)


def _is_bfc_fragmented(case: Case) -> bool:
    """Whether TensorFlow's allocator has enough unused memory for the request."""
    limit, used = (case.value("bfc-statistics", name) for name in ("limit", "used"))
    wanted = case.value("bfc-wanted", "bytes")
    if not limit or not used or not wanted:
        return False
    unused = int(limit) - int(used)
    return unused >= _FRAGMENTED_SHARE * int(limit) and unused >= int(wanted)


def spilled_to_host(case: Case) -> RuleVerdict | None:
    """More is allocated than the card has, or Task Manager shows it."""
    memory = memory_from_text(case.signs)
    shared = case.value("shared-gpu-memory", "used")
    is_shown = shared is not None and float(shared.replace(",", ".")) >= 1.0
    if is_shown or (memory and memory.is_spilled):
        return RuleVerdict(certainty="decided")
    return RuleVerdict(certainty="likely") if case.sees("sysmem-fallback-named") else None


def used_by_other_process(case: Case) -> RuleVerdict | None:
    """The card is full, but not because of this process."""
    memory = memory_from_text(case.signs)
    if memory and memory.is_used_by_others:
        foreign = f"{memory.foreign / 2**30:.2f} GiB are in use by other processes"
        return RuleVerdict(certainty="decided", because=foreign)
    if case.sees(*_USED_BY_OTHERS):
        return RuleVerdict(certainty="decided")
    # A message without numbers comes from CUDA, before torch's allocator holds any memory.
    is_bare = memory is None and case.sees("gpu-out-of-memory")
    if is_bare and not case.sees("cuda-init-out-of-memory"):
        return RuleVerdict(certainty="possible")
    return None


def half_of_a_gpu_is_in_use(machine: Machine) -> Facts:
    """More than half of a GPU's memory is in use."""
    return tuple(
        one
        for gpu in machine.gpus
        if gpu.free_bytes is not None and gpu.memory_bytes and not gpu.is_mig_on
        and gpu.free_bytes < gpu.memory_bytes / 2
        for one in fact(
            f"GPU {gpu.index}: {bytes_text(gpu.free_bytes)} of {bytes_text(gpu.memory_bytes)} free",
            "NVML",
        )
    )  # fmt: skip


def processes_were_killed(machine: Machine) -> Facts:
    """The kernel has killed a process of this cgroup because memory ran out."""
    count = machine.memory.num_killed
    if not count:
        return ()
    return fact(
        f"{counted_text(count, 'process', 'processes')} of this cgroup killed for memory",
        "memory.events",
    )


def locked_memory_is_limited(machine: Machine) -> Facts:
    """An RDMA device, but at most 64 MiB of memory may be locked."""
    limit = machine.limits.locked_bytes if machine.limits else None
    if limit is None or limit > 64 * 2**20:
        return ()
    if machine.network is None or not machine.network.has_infiniband:
        return ()
    return (
        *fact(f"{bytes_text(limit)} of memory may be locked", "/proc/self/limits"),
        *fact("an RDMA device", "/sys/class/infiniband"),
    )


def group_may_use_little(machine: Machine) -> Facts:
    """The cgroup may use less than 16 GiB, and less than a quarter of the machine's memory."""
    limit, total = machine.memory.limit_bytes, machine.memory.total_bytes
    if limit is None or total is None or limit >= min(total / 4, 16 * 2**30):
        return ()
    text = f"this cgroup may use {bytes_text(limit)}, the machine has {bytes_text(total)}"
    return fact(text, "memory.max")


def shm_is_small(machine: Machine) -> Facts:
    """/dev/shm is as small as containers' default, on a machine with a GPU."""
    shm = next((one for one in machine.disks or () if one.role == "shm"), None)
    if shm is None or shm.total_bytes is None or shm.total_bytes > 128 * 2**20 or not machine.gpus:
        return ()
    return fact(f"/dev/shm has {bytes_text(shm.total_bytes)}", "/dev/shm")


def swap_is_disabled(machine: Machine) -> Facts:
    """Swap is set to 0 in .wslconfig."""
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    is_none = config.get("wsl2.swap", "").strip().rstrip("KMGTBkmgtb ") == "0"
    return fact("[wsl2] swap=0", ".wslconfig") if machine.host.wsl == 2 and is_none else ()


def swap_is_absent(machine: Machine) -> Facts:
    """The kernel has no swap, on a machine with less than 64 GiB of memory."""
    total = machine.memory.total_bytes
    if machine.memory.swap_bytes != 0 or machine.host.container or total is None:
        return ()
    return fact("SwapTotal is 0", "/proc/meminfo") if total < 64 * 2**30 else ()


def process_limit_is_low(machine: Machine) -> Facts:
    """A limit of fewer than 1024 processes, which a training's threads can reach."""
    limit = machine.limits.processes if machine.limits else None
    if not limit or limit >= 1024:
        return ()
    return fact(f"{counted_text(limit, 'process', 'processes')} at most", "/proc/self/limits")


def open_files_limit_is_low(machine: Machine) -> Facts:
    """A limit of fewer than 1024 open files, which loader workers can reach."""
    limit = machine.limits.open_files if machine.limits else None
    if not limit or limit >= 1024:
        return ()
    return fact(f"{limit} open files at most", "/proc/self/limits")


def paging_file_is_small(machine: Machine) -> Facts:
    """A commit limit of Windows that is hardly larger than physical memory."""
    windows = machine.windows
    if windows is None or windows.memory_bytes is None or windows.commit_limit_bytes is None:
        return ()
    page_file = windows.commit_limit_bytes - windows.memory_bytes
    if page_file >= 2**30:
        return ()
    return (
        *fact(f"memory {bytes_text(windows.memory_bytes)}", "CIM"),
        *fact(f"paging files {bytes_text(max(0, page_file))}", "CIM"),
    )
