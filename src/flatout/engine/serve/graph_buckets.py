"""CUDA graphs of a prediction, one for each power of two of samples.

A batch is filled up to the next power of two with copies of its last sample, whose answers are
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.step.cuda_graphs import Graph, GraphRecorder
from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors

_MOST_SAMPLES = 256
# Clients must not fill the memory with graphs.
_MOST_SHAPES = 4
# Before a recording: libraries choose algorithms and allocate workspaces in the first calls.
_NUM_WARM_UPS = 3


@dataclass(frozen=True)
class _Recorded:
    """A graph, with the tensors that it reads and writes."""

    graph: Graph
    inputs: Any
    outputs: Any


class GraphBuckets:
    """Calls a function through graphs; directly, where none can be recorded.

    problem: why no more can be recorded; None as long as nothing speaks against it. If not even the
    first one can, the call raises a ValueError.

    Args:
        call: takes a batch on the device.
        graphs: records them.
    """

    def __init__(self, call: Callable[[Any], Any], graphs: GraphRecorder) -> None:
        self.problem: str | None = None
        self._call = call
        self._graphs = graphs
        self._recorded: dict[tuple[int, Hashable], _Recorded] = {}

    def __call__(self, batch: Any) -> Any:
        """The predictions for a batch."""
        recorded = self._graph_for(batch) if is_all_tensors(batch) else None
        if recorded is None:
            return self._call(batch)
        count = len(next(tensors_in(batch)))
        for kept, given in zip(tensors_in(recorded.inputs), tensors_in(batch), strict=True):
            kept[:count].copy_(given)
            kept[count:].copy_(given[-1:].expand_as(kept[count:]))
        recorded.graph.replay()
        # The next replay writes over them.
        outputs = (part[:count].clone() for part in tensors_in(recorded.outputs))
        return with_tensors(recorded.outputs, outputs)

    def _graph_for(self, batch: Any) -> _Recorded | None:
        count = len(next(tensors_in(batch)))
        form = tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors_in(batch))
        key = (1 << (count - 1).bit_length(), form)
        if key not in self._recorded and self.problem is None and count <= _MOST_SAMPLES:
            forms = {known for _, known in self._recorded}
            if form in forms or len(forms) < _MOST_SHAPES:
                self._record(key, _filled(batch, key[0]))
        return self._recorded.get(key)

    def _record(self, key: tuple[int, Hashable], inputs: Any) -> None:
        with self._graphs.aside():
            for _ in range(_NUM_WARM_UPS - 1):
                self._call(inputs)
            with self._graphs.watched() as reasons:
                outputs = self._call(inputs)
        if not isinstance(outputs, Tensor | dict) or not is_all_tensors(outputs):
            reasons.append("the predictions are not tensors")
        if not reasons:
            recorded = self._recorded_graph(inputs, outputs)
            if recorded is not None:
                self._recorded[key] = recorded
                return
            # Not in `except`: the traceback holds the tensors of what has failed.
            release_memory()
            reasons.append("there is not enough memory for it")
        self.problem = reasons[0]
        if not self._recorded:
            raise ValueError(self.problem)

    def _recorded_graph(self, inputs: Any, outputs: Any) -> _Recorded | None:
        """A graph that writes such outputs; None where there is no memory for it."""
        kept = with_tensors(outputs, (part.clone() for part in tensors_in(outputs)))

        def compute() -> None:
            found = self._call(inputs)
            for place, part in zip(tensors_in(kept), tensors_in(found), strict=True):
                place.copy_(part)

        # What autocast has rounded so far is freed after this batch: a graph must not read it.
        torch.clear_autocast_cache()
        try:
            return _Recorded(self._graphs.recorded(compute), inputs, kept)
        except RuntimeError as error:
            if is_out_of_memory(error):
                return None
            raise


def _filled(batch: Any, size: int) -> Any:
    """A copy of a batch, filled up with its last sample."""
    return with_tensors(
        batch,
        (
            torch.cat([tensor, tensor[-1:].expand(size - len(tensor), *tensor.shape[1:])])
            for tensor in tensors_in(batch)
        ),
    )
