"""Predictions of a replica on a GPU: its graphs answer as the model does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flatout.engine.serve.graph_buckets import GraphBuckets
from flatout.engine.step.cuda_graphs import CudaGraphs


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_graphs_answer_as_the_model_when_the_memory_between_batches_is_used(
    dtype: torch.dtype | None,
) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval().to(device)
    buckets = GraphBuckets(model, CudaGraphs(device))
    for count in (1, 5, 8, 3, 5, 64, 7):
        rows = torch.randn(count, 64, device=device)
        with (
            torch.inference_mode(),
            torch.autocast("cuda", dtype=dtype, enabled=dtype is not None),
        ):
            expected, found = model(rows), buckets(rows)
        # What autocast had rounded is freed by now, and written over.
        torch.full((1 << 24,), float("nan"), device=device)
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    with torch.inference_mode(), pytest.raises(ValueError, match="waits for the GPU"):
        GraphBuckets(lambda rows: rows * rows.sum().item(), CudaGraphs(device))(rows)
