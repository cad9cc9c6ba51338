"""State that comes, grows or has another number format than the weights survives a resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.inference import load
from flatout.errors import UsageError
from flatout.nouns.lines import Failed, Warned

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


class Net(nn.Module):
    """A linear layer, with whatever the class below does to its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.begin()

    def begin(self) -> None:
        """Before the first forward pass."""

    def change(self) -> Tensor:
        """In each forward pass; gives something that the scores depend on."""
        return torch.zeros(())

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs) + self.change()
        return scores


class Growing(Net):
    def begin(self) -> None:
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def change(self) -> Tensor:
        if self.training and len(self.cache) < 5:
            self.cache = torch.cat([self.cache, self.cache.new_ones(1)])
        return self.cache.sum() * 0.1


class GrowingAndStored(Net):
    def begin(self) -> None:
        self.register_buffer("cache", torch.zeros(2))

    change = Growing.change


class NoneAtFirst(Net):
    def begin(self) -> None:
        self.register_buffer("mask", None, persistent=False)

    def change(self) -> Tensor:
        if self.mask is None:
            self.mask = torch.full((3,), 0.5)
        self.mask += self.training * 0.1
        return self.mask


class NoneAtFirstAndStored(NoneAtFirst):
    def begin(self) -> None:
        self.register_buffer("mask", None)


class NotAnnounced(Net):
    def change(self) -> Tensor:
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.mean += self.training * 0.1
        return self.mean


class Wider(Net):
    def begin(self) -> None:
        self.register_buffer("total", torch.zeros(3))

    def change(self) -> Tensor:
        self.total = self.total.double() + self.training / 3
        return self.total.float()


class TakenAway(Net):
    def begin(self) -> None:
        self.register_buffer("once", torch.ones(3))

    def change(self) -> Tensor:
        self.once = None
        return torch.zeros(())


BUFFERS = [
    Growing, GrowingAndStored, NoneAtFirst, NoneAtFirstAndStored, NotAnnounced, Wider, TakenAway,
]  # fmt: skip


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
@pytest.mark.parametrize("model", BUFFERS)
def test_resumed_run_is_identical_when_buffers_come_and_go(
    lab: Lab, tell: Tell, plain: Plain, model: type[Net], stop: int
) -> None:
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


class OtherSize(Growing):
    def begin(self) -> None:
        self.register_buffer("cache", torch.zeros(3), persistent=False)


def test_buffer_that_is_built_otherwise_now_is_refused(lab: Lab, plain: Plain) -> None:
    folder = lab.new()
    lab.go_on(folder, plain(model=Growing), stop_after=9)
    with pytest.raises(UsageError, match="experiment-changed"):
        lab.go_on(folder, plain(model=OtherSize))


class Later(Net):
    """Makes a layer in a forward pass, which no optimizer trains."""

    num_calls = 0
    first = 1

    def change(self) -> Tensor:
        self.num_calls += self.training
        if self.num_calls >= self.first and not hasattr(self, "late"):
            self.late = nn.Linear(1, 3)
        given: Tensor = self.late.bias if hasattr(self, "late") else torch.zeros(())
        return given


class MuchLater(Later):
    first = 5


def test_layer_that_comes_in_the_first_step_is_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    with pytest.raises(UsageError, match="state-cannot-be-taken-back"):
        lab.go_on(folder, plain(model=Later))
    assert tell.events(folder, Failed)[0].step == 1
    assert "`late.weight`" in str(tell.failure(folder).because)


def test_layer_that_comes_later_is_told_once(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(model=MuchLater), checkpoint_every=6)
    told = [line.finding.rule for line in tell.events(folder, Warned)]
    assert told.count("state-cannot-be-taken-back") == 1


class Skipping(NoneAtFirst):
    def change(self) -> Tensor:
        given = super().change()
        # Another tensor in each forward pass.
        self.mask = self.mask + 0.0
        return given


def test_buffers_are_put_back_when_a_batch_is_skipped(lab: Lab, tell: Tell, plain: Plain) -> None:
    def loss_at(bad: int) -> Callable[[nn.Module, Any], Tensor]:
        calls = 0

        def loss(model: nn.Module, batch: Any) -> Tensor:
            nonlocal calls
            calls += model.training
            value = nn.functional.cross_entropy(model(batch[0]), batch[1])
            return value * float("nan") if model.training and calls == bad else value

        return loss

    masks = []
    for bad in (5, 1000):
        folder = lab.run(plain(model=Skipping, loss=loss_at(bad)), nonfinite_loss="skip")
        masks.append(tell.state(folder)["buffers"]["mask"])
    assert torch.allclose(masks[1] - masks[0], torch.full((3,), 0.1))
