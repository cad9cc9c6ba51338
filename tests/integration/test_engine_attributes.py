"""What a model holds besides weights and ordinary buffers goes on after a resume, or is named."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.errors import UsageError

if TYPE_CHECKING:
    from conftest import Lab, Tell

    Plain = Callable[..., Experiment]

Change = Callable[[nn.Module, Tensor], Tensor]


class Keeping(nn.Module):
    """Two layers, and what a test does in between.

    Args:
        begin: makes the attributes. change: is called in each forward pass of the training.
    """

    def __init__(self, begin: Callable[[nn.Module], None], change: Change) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.change = change
        begin(self)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        if self.training:
            hidden = self.change(self, hidden)
        outputs: Tensor = self.last(hidden)
        return outputs


def counted(model: Any, hidden: Tensor) -> Tensor:
    model.count += 1
    return hidden * (1 + model.count % 3)


def in_a_dict(model: Any, hidden: Tensor) -> Tensor:
    model.reported["calls"] = model.reported.get("calls", 0) + 1
    model.reported["factors"] = [0.5, 1.0 / model.reported["calls"]]
    return hidden * model.reported["factors"][1]


def mean_as_tensor(model: Any, hidden: Tensor) -> Tensor:
    model.mean = 0.9 * model.mean + 0.1 * hidden.detach().mean()
    return hidden - model.mean


def unfrozen(model: Any, hidden: Tensor) -> Tensor:
    model.count += 1
    if model.count == 4:
        model.first.requires_grad_(True)
    return hidden


def turned(model: Any, hidden: Tensor) -> Tensor:
    real = torch.view_as_complex(hidden.unflatten(-1, (4, 2)).contiguous())
    model.turn.mul_(model.turn[1:2].clone())
    return torch.view_as_real(real * model.turn).flatten(-2)


def an_expanded(*, is_persistent: bool) -> Callable[[nn.Module], None]:
    def begin(model: nn.Module) -> None:
        mask = torch.zeros(4, 1).expand(4, 8)
        model.register_buffer("mask", mask, persistent=is_persistent)

    return begin


def a_turn(*, is_persistent: bool) -> Callable[[nn.Module], None]:
    def begin(model: nn.Module) -> None:
        turn = torch.polar(torch.ones(4), torch.arange(4.0))
        model.register_buffer("turn", turn, persistent=is_persistent)

    return begin


def with_count(model: nn.Module) -> None:
    model.count = 0  # type: ignore[assignment]


def frozen(model: Any) -> None:
    with_count(model)
    model.first.requires_grad_(False)


def plus_one(model: Any, hidden: Tensor) -> Tensor:
    compact = model.mask.narrow(1, 0, 1)
    compact += 1.0
    return hidden + model.mask.sum() / 100


KINDS: dict[str, tuple[Callable[[nn.Module], None], Change]] = {
    "a counter": (with_count, counted),
    "a dict": (lambda model: setattr(model, "reported", {}), in_a_dict),
    "a tensor": (lambda model: setattr(model, "mean", torch.zeros(())), mean_as_tensor),
    "unfrozen weights": (frozen, unfrozen),
    "a complex buffer": (a_turn(is_persistent=True), turned),
    "a complex buffer of no state": (a_turn(is_persistent=False), turned),
    "an expanded buffer": (an_expanded(is_persistent=True), plus_one),
    "an expanded buffer of no state": (an_expanded(is_persistent=False), plus_one),
}


@pytest.mark.parametrize("kind", KINDS)
def test_run_goes_on_as_if_never_stopped(lab: Lab, tell: Tell, plain: Plain, kind: str) -> None:
    experiment = plain(model=lambda: Keeping(*KINDS[kind]))
    whole = lab.run(experiment)
    parts = lab.new()
    lab.go_on(parts, experiment, stop_after=3)
    lab.go_on(parts, experiment, stop_after=7)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)
    assert not tell.findings(parts)


@pytest.mark.parametrize(
    ("begin", "change"),
    [
        (lambda model: setattr(model, "seen", deque(maxlen=4)), lambda m, h: _appended(m.seen, h)),
        (lambda model: setattr(model, "seen", []), lambda m, h: _appended(m.seen, h)),
        (
            lambda model: setattr(model, "seen", torch.zeros(())),
            lambda m, h: _held(m, h, torch.zeros(17 * 2**20)),
        ),
    ],
)
def test_what_no_checkpoint_holds_is_named(
    lab: Lab, tell: Tell, plain: Plain, begin: Any, change: Any
) -> None:
    folder = lab.run(plain(model=lambda: Keeping(begin, change), epochs=1))
    [finding] = tell.findings(folder)
    assert finding.rule == "state-outside-of-checkpoint"
    assert "`seen`" in finding.problem


def _appended(seen: Any, hidden: Tensor) -> Tensor:
    seen.append(hidden.detach().mean())
    return hidden


def _held(model: Any, hidden: Tensor, value: Tensor) -> Tensor:
    model.seen = value
    return hidden


# Parameter groups.


class Unfreezing:
    """A schedule that gives the optimizer more weights after some steps or epochs."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.num_steps = 0

    def step(self) -> None:
        self.num_steps += 1
        if self.num_steps == 2:
            self.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_steps = state["num_steps"]


@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.parametrize("use", [{}, {"optimizer_implementation": "own"}])
def test_weights_that_an_optimizer_gets_while_training_are_refused(
    lab: Lab, tell: Tell, plain: Plain, every: Any, use: dict[str, Any]
) -> None:
    experiment = plain(schedule=Unfreezing, schedule_every=every)
    folder = lab.new(**use, checkpoint_every=1)
    for _ in range(2):
        with pytest.raises(UsageError) as refused:
            lab.go_on(folder, experiment)
        assert refused.value.rule == "parameter-groups-changed"
    assert tell.state(folder)["position"]["step"] == (1 if every == "step" else 14)
