"""Counts of a step of a workload on meta tensors, which have shapes and compute nothing.

`engine/training/flop_count.py` counts for a run that is being trained: any experiment, and it must
cost that run no time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from flatout.engine.bench.blocks import failure_text
from flatout.engine.bench.slow_host import SlowOperators
from flatout.engine.bench.workloads import part_of
from flatout.engine.experiment import Experiment
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.schema.recipe import Recipe
from flatout.system.clock import elapsed_s


def counted_flops(experiment: Experiment, train_data: Any) -> tuple[float | None, str | None]:
    """FLOPs of forward and backward of one batch, or None with the reason.

    Counted without computing, on meta tensors; matrix products, convolutions and attention, without
    the optimizer.
    """
    counter = FlopCounterMode(display=False)
    problem = _on_meta(experiment, train_data, counter)
    if problem is not None:
        return None, f"FLOPs not counted: {problem}"
    return float(counter.get_total_flops()), None


def counted_launches(experiment: Experiment, train_data: Any, recipe: Recipe) -> int | None:
    """Operators of a step's forward and backward that start work; None if not counted."""
    counter = SlowOperators(elapsed_s)
    if _on_meta(experiment, train_data, counter) is not None:
        return None
    num_parts = -(-experiment.batch_size // max(1, recipe.micro_batch_size.value))
    return counter.num_launches * num_parts


def _on_meta(
    experiment: Experiment, train_data: Any, counter: AbstractContextManager[Any]
) -> str | None:
    """Forward and backward of one batch on meta tensors; the reason if that fails."""
    assert experiment.loss is not None
    try:
        with torch.device("meta"):
            on_meta = experiment.model().train()
        batch = _meta(part_of(train_data, 0, experiment.batch_size))
        with counter:
            value = experiment.loss(on_meta, batch)
            assert isinstance(value, torch.Tensor), "the loss of a workload is a mean"
            value.backward()
    # An operator has no meta kernel, or the loss reads a value.
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return failure_text(error)
    return None


def _meta(batch: Any) -> Any:
    return with_tensors(batch, iter([tensor.to("meta") for tensor in tensors_in(batch)]))
