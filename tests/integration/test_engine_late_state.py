"""State that comes, grows or has another number format than the weights survives a resume."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.model.late_buffers import check_is_taken_back, structure_of
from flatout.engine.predict.predictor import load
from flatout.errors import UsageError
from flatout.schema.run_lines import Failed

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


Begin = Callable[[nn.Module], None]
Change = Callable[[Any], Tensor]


class Net(nn.Module):
    """A linear layer, with buffers to which something is done in each forward pass.

    begin: makes them. change: gives something that the scores depend on.
    """

    def __init__(self, begin: Begin, change: Change) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.change = change
        begin(self)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs) + self.change(self)
        return scores


def announced(name: str, value: Tensor | None, *, is_stored: bool) -> Begin:
    return lambda net: net.register_buffer(name, value, persistent=is_stored)


def grow(net: Any) -> Tensor:
    if net.training and len(net.cache) < 5:
        net.cache = torch.cat([net.cache, net.cache.new_ones(1)])
    total: Tensor = net.cache.sum()
    return total * 0.1


def fill(net: Any) -> Tensor:
    if net.mask is None:
        net.mask = torch.full((3,), 0.5)
    net.mask += net.training * 0.1
    mask: Tensor = net.mask
    return mask


def register(net: Any) -> Tensor:
    if not hasattr(net, "mean"):
        net.register_buffer("mean", torch.zeros(3), persistent=False)
    net.mean += net.training * 0.1
    mean: Tensor = net.mean
    return mean


def widen(net: Any) -> Tensor:
    net.total = net.total.double() + net.training / 3
    total: Tensor = net.total.float()
    return total


def take_away(net: Any) -> Tensor:
    net.once = None
    return torch.zeros(())


def delete(net: Any) -> Tensor:
    if hasattr(net, "once"):
        del net.once
        return torch.ones(())
    return torch.zeros(())


def replace(net: Any) -> Tensor:
    """Fills the mask, and puts another tensor in its place each time."""
    given = fill(net)
    net.mask = net.mask + 0.0
    return given


GROWING = partial(Net, announced("cache", torch.zeros(2), is_stored=False), grow)
NONE_AT_FIRST = announced("mask", None, is_stored=False)
BUFFERS: dict[str, Callable[[], Net]] = {
    "growing": GROWING,
    "growing, stored": partial(Net, announced("cache", torch.zeros(2), is_stored=True), grow),
    "none at first": partial(Net, NONE_AT_FIRST, fill),
    "none at first, stored": partial(Net, announced("mask", None, is_stored=True), fill),
    "not announced": partial(Net, lambda net: None, register),
    "wider": partial(Net, announced("total", torch.zeros(3), is_stored=True), widen),
    "taken away": partial(Net, announced("once", torch.ones(3), is_stored=True), take_away),
    "deleted": partial(Net, announced("once", torch.ones(3), is_stored=False), delete),
    "deleted, stored": partial(Net, announced("once", torch.ones(3), is_stored=True), delete),
}


class Master(torch.optim.Optimizer):
    """Keeps the weights in fp64 beside the model's, and counts in whole numbers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["own"] = {"weights": parameter.double() / 3}
                    state["rows"] = [torch.zeros(4, *parameter.shape, dtype=torch.float64)]
                    state["at"] = torch.tensor(2**24)
                rows, own = state["rows"][0], state["own"]["weights"]
                rows[state["at"] % 4] = parameter.grad.double() / 7
                state["at"] += 1
                own -= group["lr"] * rows.mean(dim=0)
                parameter.copy_(own * 3)


@pytest.mark.parametrize("stop", [1, 9])
@pytest.mark.parametrize("name", BUFFERS)
def test_resumed_run_is_identical_when_buffers_come_and_go(
    lab: Lab, tell: Tell, plain: Plain, name: str, stop: int
) -> None:
    model = BUFFERS[name]
    whole = lab.run(plain(model=model))
    folder = lab.new()
    lab.go_on(folder, plain(model=model), stop_after=stop)
    lab.go_on(folder, plain(model=model))
    assert tell.traces(folder) == tell.traces(whole)
    # The weights go into a model that has not been trained, too.
    assert load(folder.path, experiment=plain(model=model)).model is not None


def test_resumed_run_is_identical_when_the_optimizer_keeps_other_formats(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    whole = lab.run(plain(optimizer=Master))
    folder = lab.new()
    lab.go_on(folder, plain(optimizer=Master), stop_after=9)
    lab.go_on(folder, plain(optimizer=Master))
    ours, theirs = tell.state(folder)["optimizer"], tell.state(whole)["optimizer"]
    for number, state in theirs["state"].items():
        other = ours["state"][number]
        assert other["at"].dtype == torch.int64 and torch.equal(other["at"], state["at"])
        assert torch.equal(other["rows"][0], state["rows"][0])
        assert torch.equal(other["own"]["weights"], state["own"]["weights"])
        assert other["own"]["weights"].dtype == torch.float64


class Every(torch.optim.SGD):
    """Steps with the mean of some gradients; what it counts and keeps is in plain attributes."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.num_calls = 0
        self.rates = [0.1]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.num_calls += 1
        self.rates.append(0.1 / self.num_calls)
        for group in self.param_groups:
            group["lr"] = sum(self.rates) / len(self.rates)
        if self.num_calls % 3:
            super().step()


class Telling(Every):
    """Has a `state_dict` of its own, which says what is kept."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"own": self.num_calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_calls = state["own"]
        self.rates = [0.1, *(0.1 / number for number in range(1, self.num_calls + 1))]
        super().load_state_dict(state)


@pytest.mark.parametrize("optimizer", [Every, Telling])
def test_resumed_run_is_identical_when_the_optimizer_counts_in_attributes(
    lab: Lab, tell: Tell, plain: Plain, optimizer: Any
) -> None:
    whole = lab.run(plain(optimizer=optimizer))
    folder = lab.new()
    lab.go_on(folder, plain(optimizer=optimizer), stop_after=2)
    lab.go_on(folder, plain(optimizer=optimizer), stop_after=9)
    lab.go_on(folder, plain(optimizer=optimizer))
    assert tell.traces(folder) == tell.traces(whole)


def test_buffer_that_is_built_otherwise_now_is_refused(lab: Lab, plain: Plain) -> None:
    folder = lab.new()
    lab.go_on(folder, plain(model=GROWING), stop_after=9)
    other = partial(Net, announced("cache", torch.zeros(3), is_stored=False), grow)
    with pytest.raises(UsageError, match="experiment-changed"):
        lab.go_on(folder, plain(model=other))


def late(first: int) -> Callable[[], Net]:
    """Makes a layer in a forward pass, which no optimizer trains."""

    def change(net: Any) -> Tensor:
        net.num_calls = getattr(net, "num_calls", 0) + net.training
        if net.num_calls >= first and not hasattr(net, "late"):
            net.late = nn.Linear(1, 3)
        given: Tensor = net.late.bias if hasattr(net, "late") else torch.zeros(())
        return given

    return partial(Net, lambda net: None, change)


def test_layer_that_comes_in_the_first_step_is_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    with pytest.raises(UsageError, match="state-cannot-be-taken-back"):
        lab.go_on(folder, plain(model=late(1)))
    assert tell.events(folder, Failed)[0].step == 1
    assert "`late.weight`" in str(tell.failure(folder).because)


def test_layer_that_comes_later_leaves_the_checkpoints_from_before(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.new(checkpoint_every=2)
    with pytest.raises(UsageError, match="state-cannot-be-taken-back"):
        lab.go_on(folder, plain(model=late(6)))
    assert "`late.weight`" in str(tell.failure(folder).because)
    assert max(folder.checkpoint_steps()) == 4
    # They can be resumed: here with the layer left out.
    lab.go_on(folder, plain(model=partial(Net, lambda net: None, lambda net: torch.zeros(()))))


def without_dropout(net: Any) -> Tensor:
    """What some do when a training has come far enough."""
    net.num_calls = getattr(net, "num_calls", 0) + net.training
    if net.num_calls == 6:
        net.drop = nn.Identity()
    return torch.zeros(())


def without_module(net: Any) -> Tensor:
    net.num_calls = getattr(net, "num_calls", 0) + net.training
    if net.num_calls == 6:
        del net.drop
    return torch.zeros(())


@pytest.mark.parametrize("change", [without_dropout, without_module])
def test_layer_that_is_replaced_or_deleted_is_refused(
    lab: Lab, tell: Tell, plain: Plain, change: Change
) -> None:
    folder = lab.new(checkpoint_every=2)
    model = partial(Net, lambda net: setattr(net, "drop", nn.Dropout(0.5)), change)
    with pytest.raises(UsageError, match="state-cannot-be-taken-back"):
        lab.go_on(folder, plain(model=model))
    assert "`drop` was of class Dropout" in str(tell.failure(folder).because)
    assert max(folder.checkpoint_steps()) == 4


def test_lazy_layers_become_what_they_are_made_for() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d())
    built = structure_of(model)
    model(torch.ones(2, 6))
    check_is_taken_back(model, built)


def make_expanded(net: Any) -> None:
    NONE_AT_FIRST(net)
    net.register_buffer("wide", torch.ones(1, 3).expand(4, 3))


def test_buffers_are_put_back_when_a_batch_is_skipped(lab: Lab, tell: Tell, plain: Plain) -> None:
    def loss_at(bad: int) -> Callable[[nn.Module, Any], Tensor]:
        calls = 0

        def loss(model: nn.Module, batch: Any) -> Tensor:
            nonlocal calls
            calls += model.training
            value = nn.functional.cross_entropy(model(batch[0]), batch[1])
            return value * float("nan") if model.training and calls == bad else value

        return loss

    model = partial(Net, make_expanded, replace)
    masks = []
    for bad in (5, 1000):
        folder = lab.run(plain(model=model, loss=loss_at(bad)), nonfinite_loss="skip")
        masks.append(tell.state(folder)["buffers"]["mask"])
    assert torch.allclose(masks[1] - masks[0], torch.full((3,), 0.1))
