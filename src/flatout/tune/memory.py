"""Measures against a shortage of memory: arithmetic on bytes and samples, without tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from flatout.schema.finding import Finding, Fix
from flatout.schema.tuning import Candidate, Result, Setting
from flatout.schema.units import bytes_text, percent_text

# Of the blocks of a model, whose activations are computed again: as few as memory demands.
SHARES: tuple[bool | float, ...] = (0.25, 0.5, 0.75, True)

# Left to a desktop: its programs hold what they have, and want more when windows are opened.
DESKTOP_BYTES = 3 * 2**29

# A cap that moves by less is not worth a line: kernels that are loaded late take some, too.
_TOLD_FROM_BYTES = 64 * 2**20

# A step at the same size, or a larger one, is not so much slower for any reason of its own; memory
# that was moved makes it 5 to 50 times slower.
_EXPLAINED_SPEED = 0.7


def accumulated(setting: Setting) -> tuple[dict[str, Any], ...]:
    """Plain loops that accumulate the batch from ever smaller parts: halved down to one sample.

    None where the user has fixed the parts, or where BatchNorm would see them.
    """
    if "micro_batch_size" in setting.fixed or setting.has_batch_norm:
        return ()
    changes = []
    size = setting.batch_size
    while size > 1:
        size = -(-size // 2)
        changes.append({"micro_batch_size": size})
    return tuple(changes)


def recomputing(setting: Setting) -> tuple[dict[str, Any], ...]:
    """Plain loops that compute activations again, of ever more blocks: the first that fits will do.

    None where the model has no blocks for it.
    """
    if "activation_checkpointing" in setting.fixed or not setting.has_blocks:
        return ()
    return tuple({"activation_checkpointing": share} for share in SHARES)


def larger_parts(setting: Setting) -> Iterator[Candidate]:
    """Parts that are twice as large as the plain loop's, with activations computed again in as few
    blocks as they need. Any that do not fit lose.
    """
    size = setting.baseline.get("micro_batch_size")
    fixed = {"activation_checkpointing", "micro_batch_size"} & set(setting.fixed)
    if size is None or fixed or not setting.has_blocks:
        return
    larger = min(2 * size, setting.batch_size)
    for share in SHARES:
        yield Candidate(
            name=f"micro-batches of {larger}, {_share_text(share)} recomputed",
            axis="recomputation",
            changes={"micro_batch_size": larger, "activation_checkpointing": share},
            why="larger micro-batches may save more time than recomputing blocks costs",
        )


def _share_text(share: bool | float) -> str:
    return "all blocks" if share is True else f"{percent_text(share, 0)} of the blocks"


def loop_name(baseline: dict[str, Any], batch_size: int) -> str:
    """The plain loop's name on the ladder: with the measures that let it fit into the memory."""
    micro = baseline.get("micro_batch_size")
    if micro is not None:
        return f"plain loop, {-(-batch_size // micro)} micro-batches"
    share = baseline.get("activation_checkpointing")
    if share:
        return f"plain loop, {_share_text(share)} recomputed"
    return "plain loop"


class ReservedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a run leaves to other programs on its device.

    is_desktop: the device drives a display that someone uses.
    is_capped: the allocator enforces it; otherwise only choices respect it.
    """

    leave_bytes: int
    why: str
    is_desktop: bool = False
    is_capped: bool = False


def room_for(
    requested_bytes: int | None, *, is_gpu: bool, has_display: bool | None, has_windows_driver: bool
) -> ReservedMemory:
    """The memory to leave free, and the reason.

    Args:
        requested_bytes: amount set by the user; None lets flatout choose.
        is_gpu: the device is a GPU.
        has_display: it drives a display; None if unknown.
        has_windows_driver: it is run by the driver of Windows, there or under WSL.
    """
    if not is_gpu:
        return ReservedMemory(
            leave_bytes=requested_bytes or 0,
            why="set by you; on a CPU, it limits what tuning tries",
        )
    is_assumed = has_display is None and has_windows_driver
    is_desktop = bool(has_display) or is_assumed
    why = "the GPU does not drive a display"
    if is_assumed:
        why = (
            "the driver does not report whether this GPU drives the Windows display; assuming it "
            "does"
        )
    elif is_desktop:
        why = "the GPU drives a display"
    if requested_bytes is not None:
        why = f"set by you; {why}"
    default_bytes = DESKTOP_BYTES if is_desktop else 0
    leave_bytes = default_bytes if requested_bytes is None else requested_bytes
    # Even if nothing is reserved, a cap keeps Windows' driver from moving memory.
    is_capped = leave_bytes > 0 or has_windows_driver
    return ReservedMemory(
        leave_bytes=leave_bytes, why=why, is_desktop=is_desktop, is_capped=is_capped
    )


def lowered_cap(
    cap_bytes: int, *, free_bytes: int, held_bytes: int, needed_bytes: int, leave_bytes: int
) -> int | None:
    """The cap once another program has taken memory; None where it stays as it is.

    Args:
        cap_bytes: the cap now.
        free_bytes: on the GPU.
        held_bytes: what this process holds of it.
        needed_bytes: the most that its tensors have taken: with less, the next step would fail.
        leave_bytes: reserved for other programs.
    """
    lowered = max(needed_bytes, held_bytes + free_bytes - leave_bytes)
    return lowered if lowered < cap_bytes - _TOLD_FROM_BYTES else None


def unless_moved(result: Result, setting: Setting) -> Result:
    """The result, as one of a candidate that did not fit where the driver has moved its memory.

    Windows' driver, under WSL too, does not refuse memory that the GPU does not have. It shows in
    two things together: more was taken than was free, and the step is slower than its size
    explains. A smaller micro-batch may be slower by as much as it is smaller, since a GPU takes as
    long for fewer samples.
    """
    if result.speedup is None or result.excess_bytes <= 0:
        return result
    usual = setting.baseline.get("micro_batch_size", setting.batch_size)
    before = (result.trial.incumbent or {}).get("micro_batch_size", usual)
    size_ratio = result.trial.changes.get("micro_batch_size", usual) / before
    if result.speedup.middle >= _EXPLAINED_SPEED * min(1.0, size_ratio):
        return result
    moved = bytes_text(result.excess_bytes)
    problem = Finding(
        rule="out-of-memory",
        severity="note",
        problem=f"out of memory: the driver moved {moved} to system memory",
        because=f"this exceeds what was free, and x{result.speedup.middle:.2f} samples/s is "
        "slower than the batch size explains",
        fixes=(Fix(text="use a smaller micro_batch_size"),),
    )
    return msgspec.structs.replace(result, speedup=None, effect=None, problem=problem)


def too_large(setting: Setting, num_bytes: int | None) -> str | None:
    """The reason why something of that size does not belong on the device; None if it does."""
    free = setting.free_bytes
    if num_bytes is None or free is None or num_bytes <= free:
        return None
    return f"it needs {bytes_text(num_bytes)}, but only {bytes_text(max(0, free))} is free"
