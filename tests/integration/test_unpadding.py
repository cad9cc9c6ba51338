"""Batches without padding: the same loss and gradients as with it, and few shapes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flatout.errors import UsageError
from flatout.experiments import _unpadding, bert_large

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers (pip install 'flatout[language]')"
)
LENGTH = bert_large.SIZES["tiny"].length


def samples_of(lengths: list[int]) -> list[dict[str, Tensor]]:
    """Sequences of these lengths, some of whose tokens are masked."""
    dice = torch.Generator().manual_seed(len(lengths))
    padded = torch.full((len(lengths), LENGTH), bert_large.PAD, dtype=torch.int16)
    for row, length in zip(padded, lengths, strict=True):
        row[:length] = torch.randint(bert_large.FIRST_BYTE, 1_100, (length,), generator=dice)
    torch.manual_seed(3)
    speeches = bert_large.MaskedSpeeches(padded)
    return [speeches[index] for index in range(len(lengths))]


@needs_transformers
def test_loss_and_gradients_are_those_of_the_padded_batch() -> None:
    size = bert_large.SIZES["tiny"]
    padded, unpadded = (bert_large.build_model(size, padded=is_padded).double().eval()
                        for is_padded in (True, False))  # fmt: skip
    # Weights have the same names.
    unpadded.load_state_dict(padded.state_dict())
    samples = samples_of([LENGTH, 2, 17, 40, 1])
    batches: list[tuple[Any, Any]] = [
        (padded, torch.utils.data.default_collate(samples)),
        (unpadded, bert_large.in_one_row(samples)),
    ]
    # Of 5 x 64 cells 124 are taken: the row is filled up to 7 of 16 parts.
    assert batches[1][1]["tokens"].shape == (1, 140)
    found = []
    for model, batch in batches:
        total, count = bert_large.loss(model, batch)
        total.backward()
        metrics = bert_large.metrics(model, batch)
        found.append((total, count, metrics["accuracy"][0]))
    assert [int(count) for _, count, _ in found] == [int(found[0][1])] * 2
    assert int(found[0][2]) == int(found[1][2])
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-12, atol=0.0)
    theirs = dict(padded.named_parameters())
    for name, parameter in unpadded.named_parameters():
        torch.testing.assert_close(
            parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-12, msg=name
        )


@given(st.lists(st.integers(1, LENGTH), min_size=1, max_size=12))
def test_a_row_holds_each_token_once_and_has_one_of_16_lengths(lengths: list[int]) -> None:
    is_token = torch.arange(LENGTH)[None] < torch.tensor(lengths)[:, None]
    row = _unpadding.row_of(is_token)
    cells, sources = row["cells_N"], row["sources_BL"]
    assert torch.equal(cells[cells >= 0], is_token.flatten().nonzero()[:, 0])
    assert torch.equal(sources >= 0, is_token)
    # One is the way back of the other.
    assert torch.equal(sources.flatten()[cells[cells >= 0]], torch.arange(sum(lengths)))
    assert len(cells) % (len(lengths) * LENGTH // 16) == 0
    grid = torch.arange(is_token.numel()).view_as(is_token)
    positions = _unpadding.in_row(grid, cells, 0) % LENGTH
    assert torch.equal(row["position_ids"][0], positions)


@needs_transformers
def test_an_older_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "4.57.1")
    with pytest.raises(UsageError) as caught:
        bert_large.build_model(bert_large.SIZES["tiny"], padded=False)
    assert caught.value.rule == "transformers-too-old"
