"""Updates of weights under what is seldom: a scaler, sparse gradients, weights first used later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from flatout.engine import Experiment
from flatout.engine.optim.fused_step import set_implementation
from flatout.engine.optim.weight_update import WeightUpdate

if TYPE_CHECKING:
    from conftest import Lab

Make = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "sgd momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "sgd nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd dampening": lambda p: SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01),
}


class Late(nn.Module):
    """Its second layer is used from the second update on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, inputs: Tensor, *, is_later: bool) -> Tensor:
        outputs: Tensor = self.first(inputs)
        return outputs + self.second(inputs) if is_later else outputs


def weights_after(
    make: Make,
    implementation: Any,
    *,
    scale: float | None = None,
    overflows: tuple[int, ...] = (),
    clip_norm: float | None = None,
) -> list[Tensor]:
    """Weights after six updates, those of some of them with gradients that are infinite."""
    model = Late()
    optimizer = make(model.parameters())
    set_implementation(optimizer, implementation)
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    update = WeightUpdate([optimizer], scaler, clip_norm)
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    for number in range(6):
        loss = model(inputs, is_later=number > 1).square().mean()
        update.backward(loss * float("inf") if number in overflows else loss)
        if scaler is not None or number not in overflows:
            update.apply()
        update.clear()
    return [one.detach() for one in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("overflows", [(), (0,), (2,), (0, 1, 2, 4)])
def test_scaled_fused_step_is_that_of_the_plain_loop(
    name: str, clip_norm: float | None, overflows: tuple[int, ...]
) -> None:
    make = OPTIMIZERS[name]
    plain = weights_after(make, "for-loop", overflows=overflows, clip_norm=clip_norm)
    # Memory that is handed out again holds what was in it: of this much, something is.
    _dirty = [torch.full((6, 6), 1e6) for _ in range(64)]
    del _dirty
    fused = weights_after(make, "fused", scale=8.0, overflows=overflows, clip_norm=clip_norm)
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_scaler_divides_for_an_optimizer_that_is_no_longer_fused() -> None:
    def switched(parameters: Any) -> Optimizer:
        optimizer = SGD(parameters, lr=0.1)
        set_implementation(optimizer, "fused")
        return optimizer

    plain = weights_after(OPTIMIZERS["sgd"], "foreach")
    scaled = weights_after(switched, "foreach", scale=8.0)
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, one)


# Sparse gradients.


class Words(nn.Module):
    """An embedding whose gradient is sparse: by its module, or by the function that it calls."""

    def __init__(self, *, is_module: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8, sparse=is_module)
        self.out = nn.Linear(8, 20)

    def forward(self, words: Tensor) -> Tensor:
        if self.table.sparse:
            return self.out(self.table(words))  # type: ignore[no-any-return]
        found = nn.functional.embedding(words, self.table.weight, sparse=True)
        return self.out(found)  # type: ignore[no-any-return]


def words() -> Tensor:
    return torch.randint(0, 20, (48, 5), generator=torch.Generator().manual_seed(1))


def next_word_loss(model: nn.Module, batch: Tensor) -> Any:
    outputs, targets = model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
    total = nn.functional.cross_entropy(outputs, targets, reduction="sum", ignore_index=0)
    return total, (targets != 0).sum()


def dense_loss(model: nn.Module, batch: Tensor) -> Any:
    """The same with a gradient that is not sparse."""
    found = nn.functional.embedding(batch[:, :-1], model.table.weight)  # type: ignore[arg-type]
    outputs, targets = model.out(found).flatten(0, 1), batch[:, 1:].flatten()  # type: ignore[operator]
    total = nn.functional.cross_entropy(outputs, targets, reduction="sum", ignore_index=0)
    return total, (targets != 0).sum()


@pytest.mark.parametrize("is_module", [True, False])
@pytest.mark.parametrize(
    "use",
    [
        {},
        {"micro_batch_size": 3},
        {"clip_norm": 0.2},
        {"clip_norm": 0.2, "micro_batch_size": 3, "nonfinite_loss": "skip"},
    ],
)
def test_sparse_gradients_make_the_updates_of_dense_ones(
    lab: Lab, *, is_module: bool, use: dict[str, Any]
) -> None:
    def experiment(loss: Any) -> Experiment:
        return Experiment(
            model=lambda: Words(is_module=is_module),
            optimizer=lambda p: SGD(p, lr=0.5),
            loss=loss,
            train_data=words,
            batch_size=8,
            epochs=2,
        )

    sparse, dense = (
        lab.go_on(lab.new(**use), experiment(loss)) for loss in (next_word_loss, dense_loss)
    )
    for one, other in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one, other)
