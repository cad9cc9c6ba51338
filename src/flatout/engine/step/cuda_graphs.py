"""CUDA graphs: work that is recorded once, and then launched as a whole.

A graph holds kernels with the addresses and numbers that they were called with. Whatever Python did
between them is not in it. So what is recorded must read everything that changes from tensors that
stay where they are, and must not wait for the device.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import CaptureBroken
from flatout.errors import UsageError

# In torch's warning about each operation that waits, in its debug mode for synchronization.
_WAITS = "synchronizing CUDA operation"

Action = Callable[[], object]


class Graph(Protocol):
    """Work that was recorded."""

    def replay(self) -> None:
        """Launches it, without waiting for it."""
        ...


class GraphRecorder(Protocol):
    """Records work of a device."""

    def aside(self) -> AbstractContextManager[Any]:
        """Makes a context whose work is done as it is before it is recorded: on another stream."""
        ...

    def watched(self) -> AbstractContextManager[list[str]]:
        """Makes a context that afterwards lists what in it cannot be recorded."""
        ...

    def recorded(self, action: Action) -> Graph:
        """Records what an action gives the device to do; nothing of it is done.

        Raises:
            RuntimeError: it cannot be recorded, or there is no memory for it.
            CaptureBroken: it failed, and the process cannot be used any more.
        """
        ...


class CudaGraphs:
    """Graphs of a GPU; all of them share one pool of memory, which is theirs alone.

    They may, because none of them leaves anything in it that another one, or other code, reads.

    Source: "CUDA semantics, CUDA Graphs", https://docs.pytorch.org/docs/stable/notes/cuda.html.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """See GraphRecorder: libraries' workspaces and the choice of kernels belong to a stream."""
        current = torch.cuda.current_stream(self._device)
        # What one of the streams has freed, the other one may still read: each waits for the other.
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        """See GraphRecorder: operations that wait, and draws from generators of the host."""
        reasons: list[str] = []
        mode = torch.cuda.get_sync_debug_mode()
        before = rng.host_generator_states()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield reasons
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        if any(_WAITS in str(warning.message) for warning in caught):
            reasons.append("the step waits for the GPU, as `.item()` or printing a tensor does")
        for warning in caught:
            if _WAITS not in str(warning.message):
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )
        moved = rng.moved_generators(before, rng.host_generator_states())
        reasons += [drawn_on_host(name) for name in moved]

    def recorded(self, action: Action) -> torch.cuda.CUDAGraph:
        """See GraphRecorder."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        # What eager steps have left in the allocator's cache, the graph's own pool needs now.
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            # A thread that pins memory would break a capture in global mode.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                action()
            except BaseException as error:
                # Why it is broken is what was raised first.
                _end(graph, str(error))
                raise
            _end(graph, "part of the step waits for the GPU, or uses another stream")
        return graph


def _end(graph: torch.cuda.CUDAGraph, because: str) -> None:
    """Ends a capture. Only then does torch take allocator and generators out of it.

    Source: CUDAGraph::capture_end, aten/src/ATen/cuda/CUDAGraph.cpp.
    """
    try:
        graph.capture_end()
    except RuntimeError as error:
        raise CaptureBroken(because) from error


def not_captured(because: str, fix: str = "leave it out") -> UsageError:
    """The error of a recipe with captured steps, for a step that cannot be captured."""
    return UsageError(
        "step-not-captured",
        "the step cannot be captured in a CUDA graph.",
        because=because,
        fix=fix,
    )


def drawn_on_host(name: str) -> str:
    """The error for a graph that would repeat host random numbers from its recording."""
    return (
        f"the step draws from {name}'s random generator on the CPU, and a graph would replay the "
        "same numbers"
    )


def graphs_on(device: torch.device) -> GraphRecorder | None:
    """The recorder of a device's work; None if there is none."""
    return CudaGraphs(device) if device.type == "cuda" else None
