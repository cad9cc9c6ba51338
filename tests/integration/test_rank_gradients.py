"""A rank's gradients on their way, without the other ranks: what is sent is doubled instead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flatout.engine.ranks.gradient_buffers import ReplicatedGradients

LARGE, SMALL = (512, 1024), (7, 3)


def doubled(parameters: list[Tensor]) -> list[bool]:
    """As if another rank had the same gradients; gives which weights have one."""
    gradients = ReplicatedGradients(parameters)
    has_gradient = gradients.take()
    for one in gradients.sent():
        one.mul_(2.0)
    gradients.put(has_gradient, 1.0)
    return has_gradient


def weight(shape: tuple[int, ...], gradient: Tensor | None) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(shape))
    made.grad = gradient
    return made


def test_large_gradients_stay_where_they_are_and_small_ones_are_sent_as_one_tensor() -> None:
    large, small, smaller = torch.randn(LARGE), torch.randn(SMALL), torch.randn(SMALL)
    weights: list[Tensor] = [weight(LARGE, large), weight(SMALL, small), weight(SMALL, smaller)]
    before = [one.clone() for one in (large, small, smaller)]
    gradients = ReplicatedGradients(weights)
    assert gradients.take() == [True, True, True]
    assert [one.numel() for one in gradients.sent()] == [42, large.numel()]
    assert doubled(weights) == [True, True, True]
    assert weights[0].grad is large
    for one, expected in zip(weights, before, strict=True):
        assert one.grad is not None and torch.equal(one.grad, 2.0 * expected)


def test_gradients_that_share_memory_are_added_up_once_each() -> None:
    shared = torch.randn(LARGE)
    weights: list[Tensor] = [weight(LARGE, shared), weight(LARGE, shared.view(LARGE))]
    expected = shared.clone()
    doubled(weights)
    for one in weights:
        assert one.grad is not None and torch.equal(one.grad, 2.0 * expected)


@pytest.mark.parametrize("shape", [LARGE, SMALL])
def test_all_ranks_send_the_same_layout(shape: tuple[int, ...]) -> None:
    # Another rank's may lie otherwise: in memory, the same place must be the same weight's.
    across = torch.randn(shape[::-1]).t()
    own = weight(shape, across)
    gradients = ReplicatedGradients([own])
    gradients.take()
    [sent] = gradients.sent()
    assert torch.equal(sent.flatten(), across.contiguous().flatten())
    assert sent.is_contiguous()


@pytest.mark.parametrize("shape", [LARGE, SMALL])
def test_a_weight_without_a_gradient_sends_zeros(shape: tuple[int, ...]) -> None:
    lone = weight(shape, None)
    gradients = ReplicatedGradients([lone])
    assert gradients.take() == [False]
    [sent] = gradients.sent()
    assert torch.equal(sent, torch.zeros_like(sent)) and sent.numel() == lone.numel()
    gradients.put([False], 1.0)
    assert lone.grad is None
    # On another rank it has one.
    gradients.take()
    gradients.sent()[0].fill_(3.0)
    gradients.put([True], 1.0)
    assert lone.grad is not None and bool((lone.grad == 3.0).all())
