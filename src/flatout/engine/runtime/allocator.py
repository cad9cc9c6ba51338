"""The C library's handling of freed tensor memory: returned, or kept.

glibc hands large blocks back to the kernel as soon as they are freed, and the kernel fills the
pages of each new one with zeros as they are first touched: page faults in every update.
Source: man 3 mallopt.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

from flatout.schema.recipe import Allocator, Choice

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4

# No block has a mapping of its own, and the end of the heap is never given back.
_RETAIN = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1))

# As glibc begins; for the thresholds, as high as it raises them itself while blocks are freed.
# Where they stood cannot be asked, and once set it moves them no more.
_SYSTEM = ((_MMAP_MAX, 65536), (_MMAP_THRESHOLD, 32 * 2**20), (_TRIM_THRESHOLD, 64 * 2**20))

# Larger than what glibc keeps by its own rule.
_PROBE_BYTES = 64 * 2**20
_FEW_FAULTS = 16


def why_not_retained() -> str | None:
    """The reason why freed memory cannot be kept here; None if it can."""
    if sys.platform != "linux":
        return "only glibc, the C library of most Linux systems, supports this"
    if not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        return "the C library of this Linux system is not glibc"
    return None


def freed_memory(*, is_cpu: bool, num_ranks: int) -> Choice[Allocator]:
    """The default for freed memory."""
    if is_cpu and num_ranks > 1 and why_not_retained() is None:
        return Choice(
            value="retain",
            why="ranks wait for each other's new pages of memory in every step",
            origin="estimated",
        )
    return Choice(value="system", why="keeping freed memory takes more memory")


@contextlib.contextmanager
def allocator_settings(value: Allocator) -> Iterator[None]:
    """Keeps freed memory inside, if `allocator` says so; cannot be nested.

    What comes after is not quite what was before: glibc then keeps blocks up to 32 MiB.
    """
    if value == "system":
        yield
        return
    _set(_RETAIN)
    try:
        yield
    finally:
        _set(_SYSTEM)


def return_freed_memory() -> None:
    """Hands freed blocks back to the kernel, also those between others.

    Once a large block was freed, glibc puts others of that size on its heap, and by itself gives
    back only the end of it. Source: man 3 malloc_trim.
    """
    if why_not_retained() is None:
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def is_retaining() -> bool:
    """Whether a large block that is freed comes back without page faults."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    faults: list[int] = []
    for _ in range(2):
        before = page_faults() or 0
        block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(_PROBE_BYTES)))
        ctypes.memset(block, 1, _PROBE_BYTES)
        faults.append((page_faults() or 0) - before)
        libc.free(block)
    return faults[-1] < _FEW_FAULTS


def page_faults() -> int | None:
    """Pages that this process has been given so far without reading a disk; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _set(parameters: tuple[tuple[int, int], ...]) -> None:
    libc = ctypes.CDLL(None)
    for parameter, value in parameters:
        libc.mallopt(parameter, value)
