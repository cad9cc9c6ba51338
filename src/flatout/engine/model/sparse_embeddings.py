"""Embeddings whose gradients are sparse: they have only the rows that were looked up."""

from __future__ import annotations

from torch import nn


def sparse_embeddings(model: nn.Module) -> list[nn.Embedding | nn.EmbeddingBag]:
    """Those of the model; other modules may mean something else by `sparse`."""
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    ]
