"""Exceptions out of a training, as bad news: whose fault it is, and what to do."""

from __future__ import annotations

import pickle
import re
import sys
import traceback
from pathlib import Path
from typing import TypeGuard

import torch

from flatout.engine.advice import advice_on
from flatout.engine.graphs import CaptureBroken
from flatout.engine.person_code import (
    Place,
    function_named,
    is_own_file,
    is_person_file,
    lines_with,
    own_file,
    person_places,
    place_of,
)
from flatout.engine.watch import StoppedEarly
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
# A layer of a model that is spread over ranks, used while its weights are not put together.
_PARTS_USED = "got mixed torch.Tensor and DTensor"
# Our files that call what the experiment has built: backward, step, a loader's iteration.
AT_WORK = (
    "engine/step.py", "engine/weight_update.py", "engine/optim.py", "engine/activations.py",
    "engine/learning_rates.py", "engine/loop.py", "engine/loader.py", "engine/stream.py",
    "engine/inference.py", "engine/plain.py", "engine/caching.py", "engine/cached_feed.py",
    "engine/part.py", "engine/evaluation.py", "engine/session.py", "engine/feeds.py",
    "engine/custom_step.py", "engine/feed.py", "engine/rehearsal.py",
)  # fmt: skip
_SECOND_BACKWARD = "backward through the graph a second time"
# How methods that torch or flatout call are to be written.
_RIGHT_ARGUMENTS = {
    "__getitem__": "define it as `def __getitem__(self, index):`",
    "__len__": "define it as `def __len__(self):`",
    "__iter__": "define it as `def __iter__(self):`",
    "step": "define it as `def step(self, closure=None):`",
    "state_dict": "define it as `def state_dict(self):`",
    "load_state_dict": "define it as `def load_state_dict(self, state):`",
    "forward": "give it the arguments that the model is called with",
}


def bad_news(error: BaseException, *, is_logged: bool = False) -> FlatoutError | None:
    """What a person should read about this exception; None if it is our own fault. is_logged: its
    traceback is in the run's worker.log, which is kept.
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
            "there is not enough memory for this step.",
            because=one_line(error),
            fix="accumulate smaller pieces of each batch: --use micro_batch_size=N; or keep fewer "
            "activations: --use activation_checkpointing=true",
        )
    if isinstance(error, CaptureBroken):
        return lost_in_capture(error)
    return (
        compiling_failure(error)
        or _refused_by_torch(error)
        or _of_the_experiment(error, is_logged=is_logged)
    )


def _refused_by_torch(error: Exception) -> FlatoutError | None:
    """What torch says in words of its own; None for any other exception."""
    text = str(error)
    if "does not have a deterministic implementation" in text:
        return RunFailed(
            "nondeterministic-operation",
            "the model uses an operation that does not repeat bit for bit.",
            because=text.split(".")[0],
            fix="train without that promise: --use deterministic=false",
        )
    if isinstance(error, RuntimeError) and text.startswith(_NO_ATTENTION):
        return RunFailed(
            "recipe-does-not-fit",
            "the attention kernel that was asked for cannot compute this step.",
            because=one_line(error),
            fix="leave the choice to torch: --use attention=auto",
        )
    if isinstance(error, RuntimeError) and _PARTS_USED in text:
        return UsageError(
            "ranks-do-not-fit",
            "the model is used otherwise than by calling it, as in `model(batch)`.",
            because="each rank has a part of every weight; they are put together when the model, "
            "or a block, is called",
            fix="call it; or train with --use sharding=none",
        )
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return RunFailed(
            "loader-worker-died",
            "a process that reads the data has died.",
            because=text.splitlines()[0],
            fix="resume the run; if it happens again, look for memory: --use loader_workers=0",
        )
    if isinstance(error, AttributeError | TypeError | pickle.PicklingError) and "pickle" in text:
        return RunFailed(
            "data-cannot-be-sent",
            f"the data cannot be sent to the processes that read it: {one_line(error)}",
            because="they are new processes here, and are sent the data set and `collate`",
            fix="define their classes and functions at the top of the file; or read the data in "
            "this process: --use loader_workers=0",
        )
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was asked for that is not there, on the GPU or beside it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, Exception):
        # While something was compiled.
        return is_out_of_memory(inner)
    text = str(error)
    said = (*_OUT_OF_MEMORY, *_NO_ALGORITHM)
    return isinstance(error, RuntimeError) and any(words in text for words in said)


def lost_in_capture(error: CaptureBroken) -> RunFailed:
    """A capture that could not be ended has taken the GPU from this process."""
    return RunFailed(
        "gpu-state-lost",
        "the GPU cannot be used any more by this process.",
        because=f"the recording of a CUDA graph failed, and could not be ended: {error}",
        fix="nothing is lost: resume the run; `flatout train` does so by itself",
    )


def no_algorithm(because: str) -> RunFailed | None:
    """What a person should read where less memory did not help, or cannot be tried, if what was
    said may not have been about memory; None if it was.
    """
    if not any(words in because for words in _NO_ALGORITHM):
        return None
    return RunFailed(
        "no-convolution-algorithm",
        "cuDNN has no algorithm for a convolution of this step.",
        because=f"{because}: either there is no memory for any of them, or none takes these "
        "shapes and this number format",
        fix="use a smaller batch_size, to find out whether it is memory; else use --use "
        "precision=fp32 and --use memory_format=contiguous, or another torch",
    )


def compiling_failed(because: str) -> RunFailed:
    """What was to be compiled could not be."""
    return RunFailed(
        "compiling-failed",
        "torch could not compile the step.",
        because=because,
        fix="leave `compiled` out, or use --use compiled=off",
    )


def compiling_failure(error: BaseException) -> RunFailed | None:
    """What an exception says of compiling; None if it says something else, such as of memory."""
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
    """An exception from the person's own code, or from a library that it has set to work."""
    trace = list(traceback.extract_tb(error.__traceback__))
    # A loader worker's exception carries its own traceback as text, the cause on its last line.
    is_from_loader = str(error).startswith("Caught ")
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = lines[-1].strip() if is_from_loader and lines else one_line(error)
    frames = _frames_in(lines) if is_from_loader else trace
    places = person_places(frames)
    if not places:
        called = _called_wrongly(message, frames)
        if called is not None:
            return called
    if not places and not is_from_loader and not _is_raised_by_a_library(trace):
        return None
    because = _told_places(places)
    if isinstance(error, OSError):
        return RunFailed(
            "data-not-readable",
            f"the experiment could not read a file: {message}",
            because=because or None,
            fix="check that the data is there and readable, then train again",
        )
    if not because:
        line = trace[-1]
        place = f"{Path(line.filename).name}:{line.lineno}"
        because = f"raised in {place}, in code that your experiment called"
        own = lines_with(".backward(") if _SECOND_BACKWARD in message else []
        because = _told_places(own) or because
    return RunFailed(
        "experiment-raised",
        f"your experiment raised {message}",
        because=because,
        fix=advice_on(str(error))
        or ("correct it; worker.log has the whole traceback" if is_logged else "correct it"),
    )


def _called_wrongly(message: str, frames: list[traceback.FrameSummary]) -> UsageError | None:
    """A function of the person's that could not be called as flatout, or a library, calls it."""
    found = re.search(r"^TypeError: ([\w.<>]+)\(\) ((?:takes|missing|got) .+)", message)
    if found is None or not frames:
        return None
    if is_own_file(frames[-1].filename) and function_named(found[1], own=True) is not None:
        return None
    function = function_named(found[1], own=False)
    place = place_of(function) if function is not None else None
    if place is None or not is_person_file(place.file):
        return None
    return UsageError(
        "wrong-arguments",
        f"`{found[1].rpartition('<locals>.')[2]}` cannot be called as it is called: it {found[2]}.",
        because=place.with_code,
        fix=_RIGHT_ARGUMENTS.get(found[1].rpartition(".")[2])
        or "give it the arguments that it is called with; see docs/experiments.md",
    )


def _told_places(places: list[Place]) -> str:
    """The innermost places, the last with what is written there."""
    shown = places[-_SHOWN_FRAMES:]
    return "; ".join([*map(str, shown[:-1]), *(one.with_code for one in shown[-1:])])


def ended_by_person(error: SystemExit) -> RunFailed | None:
    """What is said where a person's own code ends the program; None where it was not that."""
    places = person_places(traceback.extract_tb(error.__traceback__))
    if not places:
        return None
    code = "" if error.code is None else repr(error.code)
    return RunFailed(
        "experiment-exited",
        f"your experiment ended the program: SystemExit({code}).",
        because=_told_places(places),
        fix="leave sys.exit(), exit() and quit() out; raise an exception where it cannot go on",
    )


def raised_at(error: BaseException) -> str | None:
    """Where in a person's own code an exception was raised; None if it was not there."""
    return _told_places(person_places(traceback.extract_tb(error.__traceback__))) or None


def one_line(error: BaseException) -> str:
    """An exception's kind and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _frames_in(lines: list[str]) -> list[traceback.FrameSummary]:
    """The frames of a traceback that was printed."""
    found = [re.match(r'\s*File "(.+)", line (\d+), in (.+)', line) for line in lines]
    return [traceback.FrameSummary(one[1], int(one[2]), one[3]) for one in found if one]


def _is_raised_by_a_library(trace: list[traceback.FrameSummary]) -> bool:
    """Whether a library raised it at work on the experiment's loss, optimizer, schedule or data."""
    own = [frame for frame in trace if is_own_file(frame.filename)]
    return bool(own) and own[-1] is not trace[-1] and own_file(own[-1].filename) in AT_WORK
