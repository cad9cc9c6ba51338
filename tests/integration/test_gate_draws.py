"""Draws that do not depend on number format and layout, and fp64 where fp32 is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from flatout.engine.gate.fixed_rng import FixedRng, Fp64Mode, NoFusedDropout


def attention(inputs: Tensor) -> Tensor:
    heads = inputs.flatten(2).unsqueeze(1)
    return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)


DRAWING: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda inputs: functional.dropout(inputs, 0.5),
    "dropout of channels": lambda inputs: functional.dropout2d(inputs, 0.5),
    "alpha dropout": lambda inputs: functional.alpha_dropout(inputs, 0.5, training=True),
    "noise": lambda inputs: inputs + torch.randn_like(inputs),
    "depth": lambda inputs: inputs * (torch.rand(inputs.shape[0], 1, 1, 1) < 0.5),
    "in place": lambda inputs: inputs * torch.empty_like(inputs).uniform_(1, 2),
    "normal in place": lambda inputs: inputs * torch.empty_like(inputs).normal_(1, 2),
    "bernoulli": lambda inputs: torch.bernoulli(torch.full_like(inputs, 0.5)) * inputs,
    "attention": attention,
}


def drawn(name: str, inputs: Tensor, *, is_expected: bool = False) -> Tensor:
    torch.manual_seed(1)
    with FixedRng(is_expected=is_expected):
        return DRAWING[name](inputs)


@pytest.mark.parametrize("name", DRAWING)
def test_draws_are_the_same_in_every_format_and_layout(name: str) -> None:
    inputs = torch.ones(4, 6, 3, 3)
    expected = drawn(name, inputs)
    half = drawn(name, inputs.bfloat16()).float()
    assert torch.allclose(half, expected, rtol=0.02, atol=0.02)
    assert torch.allclose(drawn(name, inputs.double()).float(), expected, rtol=1e-5)
    turned = drawn(name, inputs.contiguous(memory_format=torch.channels_last))
    assert torch.equal(turned, expected)


@pytest.mark.parametrize("name", DRAWING)
def test_draws_differ_and_repeat_with_the_generator(name: str) -> None:
    inputs = torch.ones(4, 6, 3, 3)
    with FixedRng(is_expected=False):
        state = torch.get_rng_state()
        one, other = DRAWING[name](inputs), DRAWING[name](inputs)
        torch.set_rng_state(state)
        again = DRAWING[name](inputs)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", DRAWING)
def test_expected_draws_do_not_depend_on_the_batch(name: str) -> None:
    inputs = torch.ones(4, 6, 3, 3)
    whole = drawn(name, inputs, is_expected=True)
    parts = [drawn(name, part, is_expected=True) for part in inputs.split([3, 1])]
    assert torch.equal(whole, torch.cat(parts))


def test_expected_dropout_leaves_everything() -> None:
    inputs = torch.randn(5, 4)
    with FixedRng(is_expected=True):
        assert torch.allclose(functional.dropout(inputs, 0.3), inputs)


def test_dropout_under_draws_has_its_share() -> None:
    torch.manual_seed(0)
    with FixedRng(is_expected=False):
        kept = (functional.dropout(torch.ones(10_000), 0.3) > 0).float().mean()
    assert float(kept) == pytest.approx(0.7, abs=0.02)


def test_lstm_draws_under_its_own_dropout() -> None:
    layer = nn.LSTM(4, 4, num_layers=2, dropout=0.5)
    inputs = torch.randn(3, 2, 4)
    torch.manual_seed(1)
    with FixedRng(is_expected=False):
        one, _ = layer(inputs)
    torch.manual_seed(1)
    with FixedRng(is_expected=False):
        other, _ = layer.double()(inputs.double())
    assert torch.allclose(one.double(), other, atol=1e-6)


def test_a_generator_of_ones_own_is_left_alone() -> None:
    inputs = torch.Generator().manual_seed(4)
    with FixedRng(is_expected=True):
        drawn_here = torch.rand(3, generator=inputs)
    assert torch.equal(drawn_here, torch.rand(3, generator=torch.Generator().manual_seed(4)))


def test_no_fused_dropout_takes_it_out_of_attention() -> None:
    query = torch.randn(1, 2, 5, 8)
    layer = nn.MultiheadAttention(8, 2, dropout=0.9)
    with NoFusedDropout():
        one = functional.scaled_dot_product_attention(query, query, query, None, 0.9)
        out, _ = layer(query[0], query[0], query[0])
    assert torch.equal(one, functional.scaled_dot_product_attention(query, query, query))
    layer.eval()
    assert torch.allclose(out, layer(query[0], query[0], query[0])[0])


def test_doubled_raises_what_asks_for_less() -> None:
    inputs = torch.ones(2, dtype=torch.uint8)
    with Fp64Mode():
        made = [inputs.float(), inputs.half(), inputs.to(torch.bfloat16), torch.ones(2),
                torch.zeros(2, dtype=torch.float32)]  # fmt: skip
    assert {tensor.dtype for tensor in made} == {torch.float64}
    assert torch.ones(1).dtype == torch.float32
