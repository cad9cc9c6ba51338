"""CUDA graphs of a prediction, one for each power of two of samples.

A batch is filled up to the next power of two with copies of its last sample, whose answers are
dropped. Written for CUDA alone; `SpeedTrial` keeps it only where it gives the same answer, and
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors

_MOST_SAMPLES = 256
_MOST_SHAPES = 4
# Before a recording: libraries choose algorithms and allocate workspaces in the first calls.
_NUM_WARM_UPS = 3


@dataclass(frozen=True)
class _Recorded:
    """A graph, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Any
    outputs: Any


class GraphBuckets:
    """Calls a function through graphs; one whose batches are not only tensors, directly.

    Args:
        call: takes a batch on the device, and does nothing that waits for the device.
        device: a GPU.
    """

    def __init__(self, call: Callable[[Any], Any], device: torch.device) -> None:
        self._call = call
        self._device = device
        self._recorded: dict[Hashable, _Recorded] = {}
        self._shapes: set[Hashable] = set()

    def __call__(self, batch: Any) -> Any:
        """The predictions for a batch."""
        if not is_all_tensors(batch):
            return self._call(batch)
        count = len(next(tensors_in(batch)))
        shapes = tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors_in(batch))
        is_new = shapes not in self._shapes
        if count > _MOST_SAMPLES or (is_new and len(self._shapes) == _MOST_SHAPES):
            return self._call(batch)
        self._shapes.add(shapes)
        size = 1 << (count - 1).bit_length()
        recorded = self._recorded.get((size, shapes))
        if recorded is None:
            recorded = self._recorded[size, shapes] = self._record(_filled(batch, size))
        for kept, given in zip(tensors_in(recorded.inputs), tensors_in(batch), strict=True):
            kept[:count].copy_(given)
            kept[count:].copy_(given[-1:].expand_as(kept[count:]))
        recorded.graph.replay()
        # The next replay writes over them.
        outputs = (part[:count].clone() for part in tensors_in(recorded.outputs))
        return with_tensors(recorded.outputs, outputs)

    def _record(self, inputs: Any) -> _Recorded:
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UPS):
                self._call(inputs)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._call(inputs)
        if not isinstance(outputs, Tensor | dict) or not is_all_tensors(outputs):
            raise TypeError("the predictions are not tensors")
        return _Recorded(graph, inputs, outputs)


def _filled(batch: Any, size: int) -> Any:
    """A copy of a batch, filled up with its last sample."""
    return with_tensors(
        batch,
        (
            torch.cat([tensor, tensor[-1:].expand(size - len(tensor), *tensor.shape[1:])])
            for tensor in tensors_in(batch)
        ),
    )
