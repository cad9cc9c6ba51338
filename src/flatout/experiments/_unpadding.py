"""Batches of sequences without their padding: all tokens in one row.

What treats each token by itself (embeddings, norms, dense layers, the loss) computes on the row, so
nothing for padding. Attention alone looks from token to token of a sequence: for it the row is laid
out as a grid of sequences. Moving between the two copies numbers and changes none.

Shapes: N tokens in the row, filled up so that few lengths occur; B sequences of at most L; W width,
in H heads of D.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flatout.experiments._transformers import transformers_library

# The row's length is a multiple of this share of the padded batch.
_SHARE = 16
_NONE = -1
# Since then its BERT hands to the attention whatever the model is given by name.
_FIRST_VERSION = 5
NAME = "unpadded"


def row_of(is_token_BL: Tensor) -> dict[str, Tensor]:
    """The positions of a padded batch's tokens in a row without padding.

    Args:
        is_token_BL: True where the batch has no padding: at least one token of each sequence.

    Returns:
        cells_N: each token's cell in the flattened grid, -1 where the row is filled up.
        sources_BL: each cell's token in the row, -1 where there is none.
        position_ids: (1, N), each token's place in its sequence.
    """
    num_sequences, length = is_token_BL.shape
    token_indices = is_token_BL.flatten().nonzero()[:, 0]
    step = math.ceil(num_sequences * length / _SHARE)
    cells = torch.full((step * math.ceil(len(token_indices) / step),), _NONE)
    cells[: len(token_indices)] = token_indices
    sources = torch.full((num_sequences * length,), _NONE)
    sources[token_indices] = torch.arange(len(token_indices))
    return {
        "cells_N": cells,
        "sources_BL": sources.view(num_sequences, length),
        "position_ids": cells.clamp(min=0)[None] % length,
    }


def in_row(grid_BL: Tensor, cells_N: Tensor, filler: int) -> Tensor:
    """Numbers of a grid in the row's order, filled up with that number."""
    return grid_BL.flatten()[cells_N.clamp(min=0)].masked_fill(cells_N < 0, filler)


class _Moved(torch.autograd.Function):
    """Rows in another order, zeros where there are none: its gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return _taken(rows, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return _taken(gradients[0], back), None, None


def _taken(rows: Tensor, indices: Tensor) -> Tensor:
    taken = rows.index_select(0, indices.clamp(min=0))
    return taken.masked_fill_((indices < 0)[:, None], 0.0)


def attention(
    module: Any,
    query_1HND: Tensor,
    key_1HND: Tensor,
    value_1HND: Tensor,
    attention_mask: None,
    **named: Any,
) -> tuple[Tensor, None]:
    """Attention within each sequence of a row, as the transformers library calls it.

    Args:
        module: it belongs to.
        query_1HND, key_1HND, value_1HND: of the row.
        attention_mask: none is made for an attention that the library does not know.
        named: `dropout` and `scaling`, and what the model was given: `cells_N`, `sources_BL`.

    Returns:
        What each token has gathered (1, N, H, D), and no weights.

    Source: "Attention Interface", https://huggingface.co/docs/transformers/attention_interface.
    """
    _, num_heads, _, width = query_1HND.shape
    cells_N, sources_BL = named["cells_N"], named["sources_BL"]
    there = sources_BL.flatten()

    def grid(rows_1HND: Tensor) -> Tensor:
        rows_NW = rows_1HND[0].transpose(0, 1).flatten(1)
        moved: Tensor = _Moved.apply(rows_NW, there, cells_N)  # type: ignore[no-untyped-call]
        return moved.view(*sources_BL.shape, num_heads, width).transpose(1, 2)

    gathered_BHLD = scaled_dot_product_attention(
        grid(query_1HND), grid(key_1HND), grid(value_1HND),
        attn_mask=(sources_BL >= 0)[:, None, None, :], dropout_p=named["dropout"],
        scale=named["scaling"],
    )  # fmt: skip
    grid_W = gathered_BHLD.transpose(1, 2).flatten(2).flatten(0, 1)
    row_NW: Tensor = _Moved.apply(grid_W, cells_N, there)  # type: ignore[no-untyped-call]
    return row_NW.view(1, -1, num_heads, width), None


def register() -> str:
    """Makes this attention known to the transformers library; gives its name there.

    Raises:
        UsageError: transformers-not-installed, transformers-too-old.
    """
    transformers_library(at_least=_FIRST_VERSION).AttentionInterface.register(NAME, attention)
    return NAME
