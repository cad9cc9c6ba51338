"""What a batch moves is put back, or it is said that it cannot be."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.oom_injection import Injection
from torch import Tensor, nn

from flatout.engine.optim.weight_update import WeightUpdate
from flatout.engine.training.rng_buffer_snapshot import StepSnapshot

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Buffers that move in each way there is: in place, past autograd, by another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        for name in ("moved", "hidden", "replaced", "resting"):
            self.register_buffer(name, torch.zeros(2))
        # Its rows are one in memory.
        self.register_buffer("expanded", torch.zeros(1, 2).expand(3, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.moved += 1
            self.expanded[:1] += 1
            self.hidden.data.add_(1)
            self.replaced = self.replaced + 1
        return self.linear(inputs)


def buffers(model: nn.Module) -> dict[str, list[float]]:
    return {name: buffer.tolist() for name, buffer in model.named_buffers()}


def test_buffers_are_put_back_however_they_move() -> None:
    model, inputs = Counting(), torch.ones(4, 3)
    kept = StepSnapshot(model, CPU)
    for number in range(3):
        before = buffers(model)
        kept.keep()
        model(inputs)
        assert kept.restore() and buffers(model) == before
        kept.keep()
        model(inputs)
        kept.detect_changes()
        assert buffers(model)["moved"] == [number + 1] * 2


def test_what_was_at_rest_and_moves_is_reported() -> None:
    model = Counting()
    kept = StepSnapshot(model, CPU)
    kept.keep()
    kept.detect_changes()
    kept.keep()
    model(torch.ones(4, 3))
    assert not kept.restore()
    # From now on it is known to move.
    kept.detect_changes()
    before = buffers(model)
    kept.keep()
    model(torch.ones(4, 3))
    assert kept.restore() and buffers(model) == before


@pytest.mark.parametrize(
    "draw", [lambda: torch.rand(3).tolist(), random.random, lambda: np.random.rand()]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_generators_are_put_back(draw: Callable[[], Any], is_first: bool) -> None:
    kept = StepSnapshot(nn.Linear(1, 1), CPU)
    kept.keep()
    if not is_first:
        draw()
        kept.detect_changes()
        kept.keep()
    drawn = draw()
    assert kept.restore() and draw() == drawn


def test_generator_that_begins_to_be_drawn_from_is_reported() -> None:
    kept = StepSnapshot(nn.Linear(1, 1), CPU)
    kept.keep()
    kept.detect_changes()
    kept.keep()
    random.random()
    assert not kept.restore()


def test_buffer_that_comes_or_goes_is_reported() -> None:
    model = Counting()
    kept = StepSnapshot(model, CPU)
    kept.keep()
    model.register_buffer("new", torch.ones(1))
    assert not kept.restore()
    del model.new
    assert kept.restore()
    model.moved = None
    assert not kept.restore()


@pytest.mark.parametrize("has_unscaled", [False, True])
def test_update_that_was_broken_off_is_forgotten(has_unscaled: bool) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    weights = WeightUpdate([optimizer], scaler, 1.0)
    weights.backward(model(torch.ones(4, 3)).sum())
    if has_unscaled:
        # As clipping does; then memory runs out.
        scaler.unscale_(optimizer)
    assert not weights.has_begun
    weights.forget()
    assert not weights.gradients()
    before = model.weight.detach().clone()
    weights.backward(model(torch.ones(4, 3)).sum())
    weights.apply()
    assert weights.has_begun and not torch.equal(model.weight, before)
    weights.clear()
    assert not weights.has_begun


def test_memory_that_is_short_for_a_copy_leaves_none_behind() -> None:
    model = Counting()
    kept = StepSnapshot(model, CPU)
    injection = Injection(at=2)
    injection.begin()
    with injection, pytest.raises(RuntimeError):
        kept.keep()
    before = buffers(model)
    kept.keep()
    model(torch.ones(4, 3))
    assert kept.restore() and buffers(model) == before
