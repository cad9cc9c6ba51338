"""Schedules and parameter groups that flatout brings along: their values at known steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from flatout.engine import Experiment, decayed_groups
from flatout.engine.optim import lr_schedules
from flatout.engine.optim.schedule_rehearsal import takes_length
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.run_lines import EpochEnded, Extended, Finished, Progress, Started
from flatout.system.store.run_folder import read_run

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
    "constant": (lambda o: lr_schedules.constant(o, warm_up=4), [*UP, 2.0, 2.0, 2.0]),
    "linear": (
        lambda o: lr_schedules.linear(o, steps=8, warm_up=4, floor=0.1),
        [*UP, 2.0, 1.55, 1.1, 0.65, 0.2, 0.2],
    ),
    "linear at once": (lambda o: lr_schedules.linear(o, steps=4), [2.0, 1.5, 1.0, 0.5, 0.0, 0.0]),
    "cosine": (
        lambda o: lr_schedules.cosine(o, steps=8, warm_up=4),
        [*UP, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0, 0.0],
    ),
    "cosine with a floor": (
        lambda o: lr_schedules.cosine(o, steps=2, floor=0.1),
        [2.0, 1.1, 0.2, 0.2],
    ),
    "inverse square root": (
        lambda o: lr_schedules.inverse_square_root(o, warm_up=4),
        [*UP, *(2 * math.sqrt(4 / count) for count in (5, 6, 7))],
    ),
    "trapezoid": (
        lambda o: lr_schedules.trapezoid(o, steps=10, warm_up=4, decay=4),
        [*UP, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0],
    ),
    "trapezoid without a top": (
        lambda o: lr_schedules.trapezoid(o, steps=6, warm_up=4, decay=4, floor=0.5),
        [*UP, 2.0, 1.5, 1.0, 1.0],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_rate_of_a_schedule_at_known_steps(name: str) -> None:
    make, expected = KNOWN[name]
    assert rates(make, len(expected)) == pytest.approx(expected)


def test_inverse_square_root_without_warm_up_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        rates(lambda o: lr_schedules.inverse_square_root(o, warm_up=0), 1)
    assert caught.value.rule == "bad-experiment"


def test_schedule_is_reported_and_resumed(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(
        schedule=lambda optimizer: lr_schedules.cosine(optimizer, steps=20, warm_up=5, floor=0.1),
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


def cosine_of_all(optimizer: Any, total_steps: int) -> Any:
    return lr_schedules.cosine(optimizer, steps=total_steps, warm_up=2)


def annealed(optimizer: Any, total_steps: int) -> Any:
    # It counts from rate to rate, and keeps its length in its state.
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)


def one_cycle(optimizer: Any, total_steps: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=total_steps)


STRETCHED = {"cosine": cosine_of_all, "annealed": annealed, "one cycle": one_cycle}


@pytest.mark.parametrize("every", ["step", "epoch"])
@pytest.mark.parametrize("name", STRETCHED)
def test_schedule_that_knows_the_length_is_stretched(
    lab: Lab, tell: Tell, plain: Plain, name: str, every: Any
) -> None:
    experiment = plain(schedule=STRETCHED[name], schedule_every=every, epochs=3)
    whole = lab.run(plain(schedule=STRETCHED[name], schedule_every=every, epochs=6))
    folder = lab.run(experiment)
    assert not tell.events(folder, Finished)[0].is_schedule_over
    # Killed on the way: the checkpoint that it goes on from is of before or after the change.
    lab.crash(folder, experiment, 5, epochs=6)
    lab.go_on(folder, experiment)
    later = [line.learning_rate for line in tell.metrics(folder, EpochEnded)][3:]
    assert later == [line.learning_rate for line in tell.metrics(whole, EpochEnded)][3:]
    if every == "step":
        assert later[0] > later[-1]


Scheduler = torch.optim.lr_scheduler
# Each of them made for 21 updates in 3 epochs.
FIXED: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda o: lr_schedules.cosine(o, steps=21, warm_up=5),
    "linear": lambda o: lr_schedules.linear(o, steps=21),
    "trapezoid": lambda o: lr_schedules.trapezoid(o, steps=21, decay=4),
    "OneCycleLR": lambda o: Scheduler.OneCycleLR(o, 0.01, total_steps=21),
    "LinearLR": lambda o: Scheduler.LinearLR(o, 1.0, 0.0, total_iters=21),
    "PolynomialLR": lambda o: Scheduler.PolynomialLR(o, total_iters=21),
    "SequentialLR": lambda o: Scheduler.SequentialLR(
        o,
        [Scheduler.LinearLR(o, 0.1, total_iters=5), Scheduler.PolynomialLR(o, total_iters=16)],
        [5],
    ),
    "LambdaLR": lambda o: Scheduler.LambdaLR(o, lambda step: max(0.0, 1 - step / 21)),
}


@pytest.mark.parametrize("name", FIXED)
def test_run_is_not_made_longer_than_its_schedule(
    lab: Lab, tell: Tell, plain: Plain, name: str
) -> None:
    experiment = plain(schedule=FIXED[name], schedule_every="step")
    folder = lab.run(experiment)
    assert tell.events(folder, Finished)[0].is_schedule_over
    before = tell.traces(folder)
    with pytest.raises(UsageError) as caught:
        lab.go_on(folder, experiment, epochs=6)
    assert caught.value.rule == "schedule-is-over"
    assert "21" in (caught.value.because or "") and "42" in (caught.value.because or "")
    assert "total_steps" in caught.value.fix
    # Nothing was trained, and the run is as long as it was.
    assert tell.traces(folder) == before and not tell.events(folder, Extended)
    assert read_run(folder).status == "finished"


@pytest.mark.parametrize("name", ["cosine", "OneCycleLR"])
def test_new_run_that_outlasts_its_schedule_is_refused_before_it_begins(
    lab: Lab, tell: Tell, plain: Plain, name: str
) -> None:
    folder = lab.new()
    with pytest.raises(UsageError) as caught:
        lab.go_on(folder, plain(schedule=FIXED[name], schedule_every="step", epochs=6))
    assert caught.value.rule == "schedule-is-over" and not tell.events(folder, Started)


GOING_ON: dict[str, tuple[Callable[[Any], Any] | None, str]] = {
    "none": (None, "epoch"),
    "constant": (lambda o: lr_schedules.constant(o, warm_up=3), "step"),
    "with a floor": (lambda o: lr_schedules.cosine(o, steps=21, floor=0.1), "step"),
    "ExponentialLR": (lambda o: Scheduler.ExponentialLR(o, 0.8), "epoch"),
    "warm restarts": (lambda o: Scheduler.CosineAnnealingWarmRestarts(o, 5), "step"),
    "plateau": (lambda o: Scheduler.ReduceLROnPlateau(o), "epoch"),
}


@pytest.mark.parametrize("name", GOING_ON)
def test_run_whose_schedule_goes_on_is_made_longer(
    lab: Lab, tell: Tell, plain: Plain, name: str
) -> None:
    make, every = GOING_ON[name]
    experiment = plain(schedule=make, schedule_every=every)
    whole = lab.run(plain(schedule=make, schedule_every=every, epochs=5))
    folder = lab.run(experiment)
    assert not tell.events(folder, Finished)[0].is_schedule_over
    lab.go_on(folder, experiment, epochs=5)
    later = [line.learning_rate for line in tell.metrics(folder, EpochEnded)]
    assert later == [line.learning_rate for line in tell.metrics(whole, EpochEnded)]


def test_few_steps_without_a_rate_are_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(
        schedule=lambda o: lr_schedules.linear(o, steps=40), schedule_every="step", epochs=6
    )
    assert "schedule-is-over" in tell.rules(lab.run(experiment))


def test_schedule_that_takes_a_length_that_nothing_tells_is_refused(lab: Lab, plain: Plain) -> None:
    class Stream:
        def __iter__(self) -> Any:
            return iter([(torch.randn(6), 1)] * 20)

    experiment = plain(schedule=cosine_of_all, schedule_every="step", train_data=Stream)
    with pytest.raises(UsageError) as caught:
        lab.run(experiment)
    assert caught.value.rule == "bad-experiment" and "steps" in caught.value.fix


def test_length_that_a_schedule_has_already_is_left_alone() -> None:
    bound = partial(Scheduler.OneCycleLR, max_lr=0.1, total_steps=50)
    assert not takes_length(bound) and takes_length(partial(Scheduler.OneCycleLR, max_lr=0.1))
    assert not takes_length(lambda optimizer, total_steps=30: None)
    assert takes_length(cosine_of_all) and not takes_length(None)


def test_steps_of_a_run_are_extended(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(schedule=cosine_of_all, schedule_every="step", epochs=None, steps=10)
    folder = lab.run(experiment)
    task = TrainTask(folder, read_run(folder).header.spec, Change(steps=20), StopRequest())
    train_in(task, lambda: experiment)
    assert read_run(folder).step == 20
    # Told at step 14, which comes after the end of the schedule that it began with.
    assert tell.metrics(folder, EpochEnded)[1].learning_rate > 1e-3
