"""Exceptions out of a training, as bad news: whose fault it is, and what to do."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import torch

import flatout
from flatout.errors import FlatoutError, RunFailed

_OWN = Path(flatout.__file__).parent
_EXPERIMENTS = _OWN / "experiments"
_SHOWN_FRAMES = 4


def bad_news(error: BaseException) -> FlatoutError | None:
    """What a person should read about this exception; None if it is our own fault."""
    if isinstance(error, FlatoutError):
        return error
    if not isinstance(error, Exception):
        return None
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        return RunFailed(
            "out-of-memory",
            "there is not enough memory for this step.",
            because=text.splitlines()[0],
            fix="accumulate smaller pieces of each batch: --use micro_batch_size=N",
        )
    if "does not have a deterministic implementation" in text:
        return RunFailed(
            "nondeterministic-operation",
            "the model uses an operation that does not repeat bit for bit.",
            because=text.split(".")[0],
            fix="train without that promise: --use deterministic=false",
        )
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return RunFailed(
            "loader-worker-died",
            "a process that reads the data has died.",
            because=text.splitlines()[0],
            fix="resume the run; if it happens again, look for memory: --use loader_workers=0",
        )
    return _of_the_experiment(error)


def _of_the_experiment(error: BaseException) -> FlatoutError | None:
    """An exception from the person's own code, with where it was raised there."""
    is_from_loader = str(error).startswith("Caught ")
    frames = _person_frames(error.__traceback__)
    if not frames and not is_from_loader:
        return None
    # A loader worker's exception carries its own traceback as text, the cause on its last line.
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = lines[-1].strip() if is_from_loader and lines else _one_line(error)
    if isinstance(error, OSError):
        return RunFailed(
            "data-not-readable",
            f"the experiment could not read a file: {message}",
            because="; ".join(frames) or None,
            fix="check that the data is still there and readable, then resume the run",
        )
    return RunFailed(
        "experiment-raised",
        f"your experiment raised {message}",
        because="; ".join(frames) or "raised in a loader worker; see worker.log",
        fix="correct it; the whole traceback is in the run's worker.log",
    )


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _person_frames(trace: TracebackType | None) -> list[str]:
    """The innermost frames in code that is neither ours nor installed, as `file:line in name`."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    frames = []
    for frame in traceback.extract_tb(trace):
        path = Path(frame.filename)
        is_own = _OWN in path.parents and _EXPERIMENTS not in path.parents
        is_installed = any(folder in path.parents for folder in installed)
        if not (is_own or is_installed) and path.exists():
            frames.append(f"{path.name}:{frame.lineno} in {frame.name}")
    return frames[-_SHOWN_FRAMES:]
