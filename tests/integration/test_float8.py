"""Products in 8 bits: how near they are, and what is left as it was. A CPU makes them, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.model.float8 import Float8Products, float8_layers
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.session.session import Session, build
from flatout.errors import UsageError

Plain = Callable[..., Experiment]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 48), nn.Linear(48, 10))


def gradients_of(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Of the weights and the inputs, by a loss that weighs the outputs unequally."""
    inputs = inputs.clone().requires_grad_()
    # As a session does it; what does not multiply in 8 bits is in bf16.
    has_float8 = any("forward" in vars(layer) for layer in model.modules())
    with torch.autocast("cpu", torch.bfloat16, enabled=has_float8):
        result = model(inputs)
    (result.float() * torch.linspace(-1, 1, result.shape[-1])).square().sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    assert inputs.grad is not None
    return [result.detach().float(), inputs.grad, *found]


@pytest.mark.parametrize("shape", [(32, 64), (7, 64), (3, 5, 64)])
def test_products_are_near_those_of_fp32(shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    exact = gradients_of(network(), inputs)
    model = network()
    products = Float8Products(model)
    found = gradients_of(model, inputs)
    for one, other in zip(found, exact, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        # 3 bits of mantissa forward and 2 backward, through three layers.
        assert float((one - other).norm() / other.norm()) < 0.15
        assert not torch.equal(one, other)
    products.close()
    for one, other in zip(gradients_of(model, inputs), exact, strict=True):
        assert torch.equal(one, other)


def test_layers_whose_sizes_do_not_fit_are_left_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(64, 10), nn.Linear(10, 16), nn.Linear(16, 16).bfloat16())
    assert list(float8_layers(model)) == []
    assert [tuple(one.weight.shape) for one in float8_layers(network())] == [(32, 64), (48, 32)]


def test_names_and_weights_are_the_models_own() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Float8Products(model)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_zeros_and_numbers_that_are_none_stay_what_they_are() -> None:
    model = network()
    Float8Products(model)
    broken = torch.ones(16, 64)
    broken[3, 5] = torch.nan
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.zeros(16, 64)).isfinite().all()
        assert not model(broken).isfinite().all()


def test_float8_is_refused_on_a_cpu(plain: Plain) -> None:
    built = build(plain(model=lambda: nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 3))), 0, "cpu")
    with pytest.raises(UsageError) as caught:
        Session(built, built.recipe({"precision": "float8"}))
    assert caught.value.rule == "precision-not-here"
    assert "float8" in (caught.value.because or "")


def test_a_model_without_such_layers_is_refused(plain: Plain) -> None:
    built = build(plain(), 0, "cpu")
    with pytest.raises(UsageError) as caught:
        check_recipe(built.recipe({"precision": "float8"}), built.facts)
    assert caught.value.rule == "recipe-does-not-fit" and "16" in (caught.value.because or "")
