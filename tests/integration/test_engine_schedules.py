"""Schedules and parameter groups that flatout brings along: their values at known steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from flatout.engine import Experiment, decayed_groups, schedules
from flatout.errors import UsageError
from flatout.nouns.lines import Progress

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


def rates(make: Callable[[Any], Any], num_steps: int) -> list[float]:
    """The rate that each update is made with; the optimizer's own is 2."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = make(optimizer)
    found = []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


UP = [0.5, 1.0, 1.5, 2.0]
KNOWN: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "constant": (lambda o: schedules.constant(o, warm_up=4), [*UP, 2.0, 2.0, 2.0]),
    "linear": (
        lambda o: schedules.linear(o, steps=8, warm_up=4, floor=0.1),
        [*UP, 2.0, 1.55, 1.1, 0.65, 0.2, 0.2],
    ),
    "linear at once": (lambda o: schedules.linear(o, steps=4), [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]),
    "cosine": (
        lambda o: schedules.cosine(o, steps=8, warm_up=4),
        [*UP, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0, 0.0],
    ),
    "cosine with a floor": (
        lambda o: schedules.cosine(o, steps=2, floor=0.1),
        [2.0, 1.1, 0.2, 0.2],
    ),
    "inverse square root": (
        lambda o: schedules.inverse_square_root(o, warm_up=4),
        [*UP, *(2 * math.sqrt(4 / count) for count in (5, 6, 7))],
    ),
    "trapezoid": (
        lambda o: schedules.trapezoid(o, steps=10, warm_up=4, decay=4),
        [*UP, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0],
    ),
    "trapezoid without a top": (
        lambda o: schedules.trapezoid(o, steps=6, warm_up=4, decay=4, floor=0.5),
        [*UP, 2.0, 1.5, 1.0, 1.0],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_rate_of_a_schedule_at_known_steps(name: str) -> None:
    make, expected = KNOWN[name]
    assert rates(make, len(expected)) == pytest.approx(expected)


def test_inverse_square_root_without_warm_up_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        rates(lambda o: schedules.inverse_square_root(o, warm_up=0), 1)
    assert caught.value.rule == "bad-experiment"


def test_schedule_is_told_and_resumed(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(
        schedule=lambda optimizer: schedules.cosine(optimizer, steps=20, warm_up=5, floor=0.1),
        schedule_every="step",
    )
    whole, parts = lab.run(experiment), lab.new()
    lab.go_on(parts, experiment, stop_after=3)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)
    # 21 updates: the last rate is the floor.
    assert tell.metrics(whole, Progress)[-1].learning_rate == pytest.approx(1e-3)


def model() -> nn.Module:
    return nn.ModuleDict(
        {"embedding": nn.Embedding(3, 4), "layer": nn.Linear(4, 2), "norm": nn.LayerNorm(2)}
    )


@pytest.mark.parametrize(
    ("without", "decayed"),
    [((), {"embedding.weight", "layer.weight"}), (("embedding",), {"layer.weight"})],
    ids=["embeddings too", "no embeddings"],
)
def test_matrices_decay_and_nothing_else(without: tuple[str, ...], decayed: set[str]) -> None:
    named = dict(model().named_parameters())
    groups = decayed_groups(iter(named.items()), 0.1, without=without)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    found = [[name for name in named if named[name] is p] for p in groups[0]["params"]]
    assert {name for names in found for name in names} == decayed
    assert len(groups[0]["params"]) + len(groups[1]["params"]) == len(named)


def test_name_without_a_parameter_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        decayed_groups(model().named_parameters(), 0.1, without=("embeding",))
    assert caught.value.rule == "bad-experiment" and "`embedding`" in (caught.value.fix or "")
