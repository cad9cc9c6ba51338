"""What a run predicts as a module of its own: tensors in, tensors out, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.predict.predictor import Predictor
from flatout.engine.runtime.error_map import one_line
from flatout.engine.serve.input_reader import named_tensors
from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors
from flatout.errors import UsageError


class Computation(nn.Module):
    """The model with the experiment's `predict` around it.

    names: of its outputs, in order.

    Args:
        predictor: of the run, on the CPU.
        layout: a batch as `predict` takes it.
    """

    def __init__(self, predictor: Predictor, layout: Any) -> None:
        super().__init__()
        self.model = predictor.model
        self._predictor = predictor
        self._layout = layout
        with torch.no_grad():
            self.names = tuple(named_tensors(predictor.call(layout)))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs for the tensors of a batch."""
        predictions = self._predictor.call(with_tensors(self._layout, iter(tensors)))
        named = named_tensors(predictions)
        return tuple(named[name].float() if named[name].dtype in _SHORT else named[name]
                     for name in self.names)  # fmt: skip


_SHORT = (torch.bfloat16, torch.float16)


def exported_program(
    computation: Computation, content: Any, varying: Sequence[frozenset[int]]
) -> torch.export.ExportedProgram:
    """The computation as a graph, for any number of samples.

    Args:
        computation: what is exported.
        content: a batch of at least two samples.
        varying: of each tensor, more dimensions that may have any size.

    Raises:
        UsageError: model-not-exportable.
    """
    tensors = tuple(tensor.clone() for tensor in tensors_in(content))
    places = varying or (frozenset(),) * len(tensors)
    dimension = torch.export.Dim
    shapes = tuple(
        {0: dimension.DYNAMIC} | dict.fromkeys(sorted(others), dimension.AUTO) for others in places
    )
    try:
        with torch.no_grad():
            return torch.export.export(
                computation, tensors, dynamic_shapes={"tensors": shapes}, strict=False
            )
    except Exception as error:
        raise not_exportable(f"torch.export: {one_line(error)}") from error


def require_tensors(predictor: Predictor, content: Any) -> None:
    """Refuses a run whose predictions are not a computation of tensors.

    Raises:
        UsageError: model-not-exportable.
    """
    if not is_all_tensors(content):
        raise not_exportable("its `predict` takes texts or other values, not tensors")
    with torch.no_grad():
        predictions = predictor.call(content)
    if not named_tensors(predictions):
        raise not_exportable("its `predict` returns texts, images or other values, not tensors")


def not_exportable(because: str) -> UsageError:
    """The error for a computation that no graph can hold."""
    return UsageError(
        "model-not-exportable",
        "this run's predictions cannot be exported as a graph.",
        because=because,
        fix="export the weights (--to safetensors), or serve the run itself: flatout serve RUN",
    )
