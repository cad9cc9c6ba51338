"""Exceptions out of a training, as bad news: whose fault it is, and what to do."""

from __future__ import annotations

import pickle
import re
import sys
import traceback
from pathlib import Path
from typing import TypeGuard

import torch

from flatout.engine.runtime.error_advice import advice_on
from flatout.engine.runtime.stop_signals import StoppedEarly
from flatout.engine.runtime.user_code import (
    CodeLocation,
    function_refusing,
    is_own_file,
    is_user_file,
    lines_with,
    location_of,
    own_file,
    user_locations,
)
from flatout.errors import FlatoutError, RunFailed, UsageError

_SHOWN_FRAMES = 4
# What allocators say for whose errors torch has no class, each with who says it. Sources: pytorch,
# c10/core/impl/alloc_cpu.cpp, c10/cuda/CUDAException.h, c10/cuda/driver_api.h,
# aten/src/ATen/cuda/Exceptions.h and CUDAContextLight.h, aten/src/ATen/native/cudnn/Conv_v8.cpp;
# NVIDIA, "cuDNN Graph API", cudnnStatus_t; NVIDIA/nccl, src/include/checks.h; triton-lang/triton,
# third_party/nvidia/backend/driver.c.
_OUT_OF_MEMORY = (
    # The CPU's, on Linux and on Windows.
    "can't allocate memory", "not enough memory: you tried to allocate",
    # CUDA's runtime, as for page-locked memory; its driver, as for segments that grow.
    "CUDA error: out of memory", "CUDA driver error: out of memory", "cudaErrorMemoryAllocation",
    # Workspaces of its libraries.
    "CUBLAS_STATUS_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED", "CUSPARSE_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    # NCCL's buffers; what Triton loads and launches.
    "Cuda failure 2 'out of memory'", "Cuda failure 'out of memory'",
    "Triton Error [CUDA]: out of memory",
)  # fmt: skip
# cuDNN found no algorithm for a convolution. Mostly each of them has failed to get its workspace,
# which torch does not say; but shapes and number formats that it does not have sound the same.
_NO_ALGORITHM = (
    "FIND was unable to find an engine to execute this computation",
    "GET was unable to find an engine to execute this computation",
)
# torch's attention, where the only kernels it may use are not made for the device or the shapes.
_NO_ATTENTION = ("No available kernel", "No viable backend for scaled_dot_product_attention")
# A layer of a model that is spread over ranks, used while its weights are sharded.
_PARTS_USED = "got mixed torch.Tensor and DTensor"
# Our files that call what the experiment has built: backward, step, a loader's iteration.
AT_WORK = (
    "engine/feed/cache_check.py",
    "engine/feed/cached_feed.py",
    "engine/feed/feed.py",
    "engine/feed/iterable_feed.py",
    "engine/feed/loader_feed.py",
    "engine/feed/select_feed.py",
    "engine/model/activation_checkpointing.py",
    "engine/optim/fused_step.py",
    "engine/optim/lr_schedulers.py",
    "engine/optim/schedule_rehearsal.py",
    "engine/optim/weight_update.py",
    "engine/predict/predictor.py",
    "engine/session/hook_set.py",
    "engine/session/session.py",
    "engine/session/validation.py",
    "engine/step/custom_step.py",
    "engine/step/step.py",
    "engine/training/loop.py",
    "engine/tuner/baseline_loop.py",
    "engine/tuner/data_subset.py",
)
_SECOND_BACKWARD = "backward through the graph a second time"
# The second is Python 3.13's, of a function within another one.
_NOT_PICKLED = ("pickle", "get local object")
# Correct signatures of methods that torch or flatout call.
_RIGHT_ARGUMENTS = {
    "__getitem__": "define it as `def __getitem__(self, index):`",
    "__len__": "define it as `def __len__(self):`",
    "__iter__": "define it as `def __iter__(self):`",
    "step": "define it as `def step(self, closure=None):`",
    "state_dict": "define it as `def state_dict(self):`",
    "load_state_dict": "define it as `def load_state_dict(self, state):`",
    "forward": "define it with the arguments that the model is called with",
}


def to_flatout_error(error: BaseException, *, is_logged: bool = False) -> FlatoutError | None:
    """The error to show for this exception; None if it is our own fault.

    is_logged: its traceback is in the run's worker.log, which is kept.
    """
    if isinstance(error, FlatoutError):
        return error
    if isinstance(error, SystemExit):
        return ended_by_person(error)
    if not isinstance(error, Exception) or isinstance(error, StoppedEarly):
        return None
    if is_out_of_memory(error):
        return no_algorithm(one_line(error)) or RunFailed(
            "out-of-memory",
            "not enough memory for this step.",
            because=one_line(error),
            fix="use gradient accumulation: --use micro_batch_size=N; or activation "
            "checkpointing: --use activation_checkpointing=true",
        )
    if isinstance(error, CaptureBroken):
        return lost_in_capture(error)
    return (
        compiling_failure(error)
        or _refused_by_torch(error)
        or _of_the_experiment(error, is_logged=is_logged)
    )


def _refused_by_torch(error: Exception) -> FlatoutError | None:
    """torch's own words; None for any other exception."""
    text = str(error)
    if "does not have a deterministic implementation" in text:
        return RunFailed(
            "nondeterministic-operation",
            "the model uses an operation that is not deterministic.",
            because=text.split(".")[0],
            fix="train without determinism: --use deterministic=false",
        )
    if isinstance(error, RuntimeError) and text.startswith(_NO_ATTENTION):
        return RunFailed(
            "recipe-does-not-fit",
            "the selected attention kernel cannot compute this step.",
            because=one_line(error),
            fix="let torch choose: --use attention=auto",
        )
    if isinstance(error, RuntimeError) and _PARTS_USED in text:
        return UsageError(
            "ranks-do-not-fit",
            "the model is used without calling it as `model(batch)`.",
            because="each rank has a part of every weight; FSDP gathers them when the model, or "
            "a block, is called",
            fix="call the model; or train with --use sharding=none",
        )
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return RunFailed(
            "loader-worker-died",
            "a process that reads the data died.",
            because=text.splitlines()[0],
            fix="resume the run; if it happens again, memory may be short: --use loader_workers=0",
        )
    is_pickling = isinstance(error, AttributeError | TypeError | pickle.PicklingError)
    if is_pickling and any(words in text for words in _NOT_PICKLED):
        return RunFailed(
            "data-cannot-be-sent",
            f"cannot send the data to the processes that read it: {one_line(error)}",
            because="on this system they are new processes, and receive copies of the dataset "
            "and `collate`",
            fix="define their classes and functions at the top of the file; or read the data in "
            "this process: --use loader_workers=0",
        )
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is an out-of-memory error, of the GPU or the computer."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, Exception):
        # While something was compiled.
        return is_out_of_memory(inner)
    text = str(error)
    phrases = (*_OUT_OF_MEMORY, *_NO_ALGORITHM)
    return isinstance(error, RuntimeError) and any(words in text for words in phrases)


def lost_in_capture(error: CaptureBroken) -> RunFailed:
    """A capture that could not be ended has taken the GPU from this process."""
    return gpu_lost(f"recording a CUDA graph failed, and the recording could not be ended: {error}")


def gpu_lost(because: str) -> RunFailed:
    """The error of a process that can no longer use the GPU."""
    return RunFailed(
        "gpu-state-lost",
        "this process can no longer use the GPU.",
        because=because,
        fix="nothing is lost: resume the run; `flatout train` does so by itself",
    )


def no_algorithm(because: str) -> RunFailed | None:
    """The finding if less memory did not help, or cannot be tried; None if the message is certainly
    about memory.
    """
    if not any(words in because for words in _NO_ALGORITHM):
        return None
    return RunFailed(
        "no-convolution-algorithm",
        "cuDNN has no algorithm for a convolution of this step.",
        because=f"{because}: either memory is short for all of them, or none supports these "
        "shapes and this dtype",
        fix="try a smaller batch_size, to see whether it is memory; otherwise use --use "
        "precision=fp32 and --use memory_format=contiguous, or another version of torch",
    )


def compiling_failed(because: str) -> RunFailed:
    """The error for a failed compilation."""
    return RunFailed(
        "compiling-failed",
        "torch could not compile the step.",
        because=because,
        fix="leave `compiled` out, or train with --use compiled=off",
    )


def compiling_failure(error: BaseException) -> RunFailed | None:
    """The compiler's part of an exception; None if it is about something else, such as memory."""
    if _is_of_compiling(error):
        return error
    # Where nothing was compiled it is not loaded, and takes a second to be.
    kinds = sys.modules.get("torch._dynamo.exc")
    if kinds is None or not isinstance(
        error, kinds.TorchDynamoException | kinds.FailOnRecompileLimitHit
    ):
        return None
    inner = getattr(error, "inner_exception", None) or error
    if _is_of_compiling(inner):
        return inner
    return None if is_out_of_memory(inner) else compiling_failed(one_line(inner))


def _is_of_compiling(error: BaseException) -> TypeGuard[RunFailed]:
    return isinstance(error, RunFailed) and error.rule == "compiling-failed"


def _of_the_experiment(error: BaseException, *, is_logged: bool) -> FlatoutError | None:
    """An exception from the user's own code, or from a library that it has set to work."""
    trace = list(traceback.extract_tb(error.__traceback__))
    # A loader worker's exception carries its own traceback as text, the cause on its last line.
    is_from_loader = str(error).startswith("Caught ")
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = lines[-1].strip() if is_from_loader and lines else one_line(error)
    frames = _frames_in(lines) if is_from_loader else trace
    locations = user_locations(frames)
    if not locations:
        called = _called_wrongly(message, frames)
        if called is not None:
            return called
    if not locations and not is_from_loader and not _is_raised_by_a_library(trace):
        return None
    because = _locations_text(locations)
    if isinstance(error, OSError):
        return RunFailed(
            "data-not-readable",
            f"the experiment could not read a file: {message}",
            because=because or None,
            fix="check that the data is there and readable, then train again",
        )
    if not because:
        line = trace[-1]
        location = f"{Path(line.filename).name}:{line.lineno}"
        because = f"raised in {location}, in code that your experiment called"
        own = lines_with(".backward(") if _SECOND_BACKWARD in message else []
        because = _locations_text(own) or because
    return RunFailed(
        "experiment-raised",
        f"your experiment raised {message}",
        because=because,
        fix=advice_on(str(error))
        or ("fix it; worker.log has the full traceback" if is_logged else "fix it"),
    )


def _called_wrongly(message: str, frames: list[traceback.FrameSummary]) -> UsageError | None:
    """A function of the user's that could not be called as flatout, or a library, calls it."""
    match = re.search(r"^TypeError: ([\w.<>]+)\(\) ((?:takes|missing|got) .+)", message)
    if match is None or not frames:
        return None
    name, refusal = match[1], match[2]
    is_in_own_file = is_own_file(frames[-1].filename)
    if is_in_own_file and function_refusing(name, refusal, own=True) is not None:
        return None
    function = function_refusing(name, refusal, own=False)
    location = location_of(function) if function is not None else None
    if location is None or not is_user_file(location.file):
        return None
    return UsageError(
        "wrong-arguments",
        f"`{match[1].rpartition('<locals>.')[2]}` is called with the wrong arguments: it "
        f"{match[2]}.",
        because=location.with_code,
        fix=_RIGHT_ARGUMENTS.get(match[1].rpartition(".")[2])
        or "let it accept the arguments that flatout passes; see `flatout docs experiments`",
    )


def _locations_text(locations: list[CodeLocation]) -> str:
    """The innermost places, the last with what is written there."""
    shown = locations[-_SHOWN_FRAMES:]
    return "; ".join([*map(str, shown[:-1]), *(location.with_code for location in shown[-1:])])


def ended_by_person(error: SystemExit) -> RunFailed | None:
    """The finding if the user's own code ends the program; None for any other exception."""
    locations = user_locations(traceback.extract_tb(error.__traceback__))
    if not locations:
        return None
    code = "" if error.code is None else repr(error.code)
    return RunFailed(
        "experiment-exited",
        f"your experiment ended the program: SystemExit({code}).",
        because=_locations_text(locations),
        fix="do not call sys.exit(), exit() or quit(); raise an exception instead",
    )


def raised_at(error: BaseException) -> str | None:
    """The line of the user's own code that raised an exception; None if it was raised elsewhere."""
    return _locations_text(user_locations(traceback.extract_tb(error.__traceback__))) or None


def one_line(error: BaseException) -> str:
    """An exception's kind and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _frames_in(lines: list[str]) -> list[traceback.FrameSummary]:
    """The frames of a traceback that was printed."""
    matches = [re.match(r'\s*File "(.+)", line (\d+), in (.+)', line) for line in lines]
    return [traceback.FrameSummary(match[1], int(match[2]), match[3]) for match in matches if match]


def _is_raised_by_a_library(trace: list[traceback.FrameSummary]) -> bool:
    """Whether a library raised it at work on the experiment's loss, optimizer, schedule or data."""
    own = [frame for frame in trace if is_own_file(frame.filename)]
    return bool(own) and own[-1] is not trace[-1] and own_file(own[-1].filename) in AT_WORK


class CaptureBroken(RuntimeError):
    """A capture that could not even be ended: torch's allocator and generators still take part in
    it, and what this process computes from here on is not to be trusted.
    """
