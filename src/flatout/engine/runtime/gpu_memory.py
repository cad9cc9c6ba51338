"""Memory of the process and of its GPU: how much there is, who else needs it, how it is given back.

A GPU that drives a display is shared with the desktop: there, flatout's share is
capped below what is free, and its process yields to others.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from typing import Any

import psutil
import torch

from flatout.engine.runtime.child_query import query_in_child
from flatout.errors import UsageError
from flatout.schema.finding import Finding, Fix, option_without_effect
from flatout.schema.units import bytes_text
from flatout.system.clock import elapsed_s
from flatout.system.wsl import has_windows_driver
from flatout.tune.memory import ReservedMemory, lowered_cap, room_for
from flatout.tune.oom_policy import is_moved

_NVML_LIMIT_S = 3.0

# Asking the driver takes time; others take memory slowly.
_CHECK_EVERY_S = 1.0

# Lines of progress whose speeds are compared.
_JUDGED_RATES = 60

# On POSIX; Windows has a class of its own for it.
_LOWER_NICENESS = 5


def release_memory() -> None:
    """Frees cached memory: torch keeps what it has had from the GPU's driver.

    Not to be called inside `except`: the traceback holds the tensors of what has failed.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def free_bytes(device: torch.device, limit_bytes: int | None = None) -> int:
    """Memory that this process could still have on a device.

    Args:
        device: the CPU means the computer's memory.
        limit_bytes: what a container lets its processes have of that.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    if limit_bytes is None:
        return available
    return max(0, min(available, limit_bytes - int(psutil.Process().memory_info().rss)))


def room_on(device: torch.device, requested_bytes: int | None) -> ReservedMemory:
    """The memory to reserve for other programs on a device, and the reason.

    Args:
        device: where is trained.
        requested_bytes: what the user wants to be left; None leaves it to flatout.
    """
    is_cuda = device.type == "cuda"
    return room_for(
        requested_bytes,
        is_gpu=is_cuda,
        has_display=_has_display(device) if is_cuda else False,
        has_windows_driver=is_cuda and has_windows_driver(),
    )


def _has_display(device: torch.device) -> bool | None:
    """Whether the GPU drives a display; None where the driver does not tell."""
    # NVML can crash or hang under WSL.
    reply = query_in_child("flatout.system.nvml_child", limit_s=_NVML_LIMIT_S)
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return drives_display(reply, uuid)


def drives_display(reply: dict[str, Any] | str, uuid: str) -> bool | None:
    """Whether the GPU of that UUID drives a display, from the output of `system/nvml_child.py`."""
    gpus = reply.get("gpus", []) if isinstance(reply, dict) else []
    for gpu in gpus:
        # torch gives it without NVML's prefix.
        if uuid and str(gpu.get("uuid")).removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            has_display: bool | None = gpu.get("has_display")
            return has_display
    return None


def lower_priority() -> None:
    """Lets other programs have the processor first; what this process starts does so too."""
    process = psutil.Process()
    if sys.platform == "win32":
        process.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    elif process.nice() < _LOWER_NICENESS:
        process.nice(_LOWER_NICENESS)


class MemoryCap:
    """Keeps what this process takes of a GPU's memory below what others need.

    torch's allocator gets a limit: what is free, less what is reserved. Beyond it, it raises
    its out-of-memory error, also where Windows' driver would move memory instead.

    Args:
        device: a GPU.
        leave_bytes: reserved for other programs.

    Raises:
        UsageError: no-memory-left.
    """

    def __init__(self, device: torch.device, leave_bytes: int) -> None:
        self._device = device
        self._leave_bytes = leave_bytes
        free, self._total_bytes = torch.cuda.mem_get_info(device)
        if free <= leave_bytes:
            raise UsageError(
                "no-memory-left",
                f"{bytes_text(leave_bytes)} of the GPU's memory is reserved for other programs, "
                f"but only {bytes_text(free)} is free.",
                fix="close other programs that use the GPU, or reserve less: --leave-free 512MiB",
            )
        self._cap_bytes = torch.cuda.memory_reserved(device) + free - leave_bytes
        self._checked_s = elapsed_s()
        self._set()

    def _set(self) -> None:
        share = min(1.0, self._cap_bytes / self._total_bytes)
        torch.cuda.set_per_process_memory_fraction(share, self._device)

    def check(self) -> Finding | None:
        """Lowers the cap where another program has taken memory; returns a note for the user."""
        now_s = elapsed_s()
        if now_s - self._checked_s < _CHECK_EVERY_S:
            return None
        self._checked_s = now_s
        device = self._device
        found_bytes = torch.cuda.mem_get_info(device)[0]
        if found_bytes >= self._leave_bytes:
            return None
        torch.cuda.empty_cache()
        lowered = lowered_cap(
            self._cap_bytes,
            free_bytes=torch.cuda.mem_get_info(device)[0],
            held_bytes=torch.cuda.memory_reserved(device),
            needed_bytes=torch.cuda.max_memory_allocated(device),
            leave_bytes=self._leave_bytes,
        )
        if lowered is None:
            return None
        before, self._cap_bytes = self._cap_bytes, lowered
        self._set()
        return Finding(
            rule="gpu-memory-taken",
            severity="note",
            problem="another program took GPU memory: this run now uses at most "
            f"{bytes_text(lowered)}.",
            because=f"{bytes_text(found_bytes)} was free, and {bytes_text(self._leave_bytes)} is "
            f"reserved for other programs; the limit was {bytes_text(before)}",
            fixes=(Fix(text="nothing; change the reserved amount with --leave-free"),),
        )


def reserved_memory_finding(
    room: ReservedMemory, device: torch.device, *, is_searched: bool
) -> Finding:
    """The finding about a run that leaves memory to other programs."""
    if device.type == "cpu" and not is_searched:
        return option_without_effect(
            "--leave-free",
            "on a CPU it only limits what tuning tries, and nothing is tuned",
            "leave it out, or tune with --tune full",
        )
    of, also = "the computer's memory", ""
    if device.type == "cuda":
        of, also = (
            "the GPU's memory",
            ", which also get the processor first" if room.is_desktop else "",
        )
    return Finding(
        rule="memory-is-left-free",
        severity="note",
        problem=f"{bytes_text(room.leave_bytes)} of {of} is reserved for other programs{also}.",
        because=room.why,
        fixes=(Fix(text="change it with --leave-free; 0 uses all that is free"),),
    )


class MemoryWatch:
    """Sees memory that Windows' driver moves out of the GPU in place of refusing it.

    Args:
        device: where something is about to be measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" and has_windows_driver() else None
        if self._device is not None:
            reserved = torch.cuda.memory_reserved(self._device)
            self._available_bytes = torch.cuda.mem_get_info(self._device)[0] + reserved
            torch.cuda.reset_peak_memory_stats(self._device)

    def excess_bytes(self) -> int:
        """Bytes taken since then beyond the free memory; 0 if a driver refuses that."""
        if self._device is None:
            return 0
        return max(0, torch.cuda.max_memory_reserved(self._device) - self._available_bytes)


class SpillWatch:
    """Sees in a training that Windows' driver has moved memory out of the GPU, by two things
    together: more was taken than was free, and the speed has fallen.

    Args:
        device: where is trained.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin()

    def _begin(self) -> None:
        self._watch = MemoryWatch(self._device)
        self._rates: deque[float] = deque(maxlen=_JUDGED_RATES)

    def moved_bytes(self, samples_per_s: float) -> int:
        """The moved bytes, after another line of progress; 0 if the speed shows none."""
        self._rates.append(samples_per_s)
        excess_bytes = self._watch.excess_bytes()
        if not is_moved(self._rates, excess_bytes):
            return 0
        # What follows is compared with itself.
        self._begin()
        return excess_bytes
