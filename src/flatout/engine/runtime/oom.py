"""Recognizes out-of-memory errors from exceptions."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import torch

from flatout.engine.runtime.error_map import gpu_lost, is_out_of_memory, one_line
from flatout.engine.runtime.user_code import own_file
from flatout.schema.oom_adaptation import Part

# What our functions do, by file and name. The innermost of them counts.
WORKING: dict[tuple[str, str], Part] = {
    ("engine/training/updater.py", "_make_update"): "data",
    ("engine/step/step.py", "run"): "forward",
    ("engine/step/step.py", "_forward"): "forward",
    ("engine/step/step.py", "_backward"): "backward",
    ("engine/step/custom_step.py", "run"): "forward",
    ("engine/optim/weight_update.py", "backward"): "backward",
    ("engine/optim/weight_update.py", "backward_to_own"): "backward",
    ("engine/optim/weight_update.py", "apply"): "optimizer",
    ("engine/model/ema.py", "update"): "optimizer",
    ("engine/training/loop.py", "_try_to_validate"): "validation",
    ("engine/training/loop.py", "_save"): "checkpoint",
    ("engine/step/captured_step.py", "_launch"): "capture",
}
# Within it the other functions are called, too, and nothing is done.
RECORDING = ("engine/step/captured_step.py", "_record")


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The place and the words of an out-of-memory error. Holds nothing of the exception: that would
    keep the tensors alive that are to make room.

    is_heard: it was another rank's.
    """

    part: Part
    because: str
    is_heard: bool = False


class PeerOutOfMemory(MemoryError):
    """Another rank's memory has run out: this one is to take less as well."""


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """The out-of-memory error in an exception; None if it is another one."""
    if isinstance(error, PeerOutOfMemory):
        return OutOfMemory(part="other", because="another rank ran out of memory", is_heard=True)
    if not is_out_of_memory(error):
        return None
    trace = traceback.extract_tb(error.__traceback__)
    frames = [(own_file(frame.filename) or "", frame.name) for frame in trace]
    if RECORDING in frames:
        return OutOfMemory(part="capture", because=one_line(error))
    parts = [WORKING[frame] for frame in frames if frame in WORKING]
    return OutOfMemory(part=parts[-1] if parts else "other", because=one_line(error))


def free_after_oom(device: torch.device) -> None:
    """Waits until the device has done what it was given, after memory ran out.

    Raises:
        RunFailed: gpu-state-lost, where the process cannot use it any more.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise gpu_lost(f"after running out of memory: {one_line(error)}") from error
