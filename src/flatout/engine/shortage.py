"""That memory was asked for in vain, from the exception that says so."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import torch

from flatout.engine.failures import is_out_of_memory, one_line
from flatout.engine.person_code import own_file
from flatout.errors import RunFailed
from flatout.nouns.adaptation import Part

# What our functions do, by file and name. The innermost of them counts.
WORKING: dict[tuple[str, str], Part] = {
    ("engine/update_maker.py", "_made"): "data",
    ("engine/step.py", "run"): "forward",
    ("engine/step.py", "_forward"): "forward",
    ("engine/step.py", "_backward"): "backward",
    ("engine/custom_step.py", "run"): "forward",
    ("engine/weight_update.py", "backward"): "backward",
    ("engine/weight_update.py", "backward_to_own"): "backward",
    ("engine/weight_update.py", "apply"): "optimizer",
    ("engine/ema.py", "update"): "optimizer",
    ("engine/loop.py", "_try_to_validate"): "validation",
    ("engine/loop.py", "_save"): "checkpoint",
    ("engine/capture.py", "_launch"): "capture",
}
# Within it the other functions are called, too, and nothing is done.
RECORDING = ("engine/capture.py", "_record")


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """Where memory ran out, and in which words. It holds nothing of the exception: that would keep
    the tensors alive that are to make room.

    is_heard: it was another rank's.
    """

    part: Part
    because: str
    is_heard: bool = False


class PeerShort(MemoryError):
    """Another rank's memory has run out: this one is to take less as well."""


def shortage_of(error: BaseException) -> Shortage | None:
    """What an exception says of memory; None if it says something else."""
    if isinstance(error, PeerShort):
        return Shortage(part="other", because="another rank's memory ran out", is_heard=True)
    if not is_out_of_memory(error):
        return None
    trace = traceback.extract_tb(error.__traceback__)
    frames = [(own_file(one.filename) or "", one.name) for one in trace]
    if RECORDING in frames:
        return Shortage(part="capture", because=one_line(error))
    parts = [WORKING[frame] for frame in frames if frame in WORKING]
    return Shortage(part=parts[-1] if parts else "other", because=one_line(error))


def settle(device: torch.device) -> None:
    """Waits until the device has done what it was given, after memory ran out.

    Raises:
        RunFailed: gpu-state-lost, where the process cannot use it any more.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise RunFailed(
            "gpu-state-lost",
            "the GPU cannot be used any more by this process.",
            because=f"when memory had run out, {one_line(error)}",
            fix="nothing is lost: resume the run; `flatout train` does so by itself",
        ) from error
