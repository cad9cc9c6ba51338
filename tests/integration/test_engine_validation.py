"""Which weights are kept, and when early stopping stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.schema.run_lines import Finished, Validated
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


class Counting(nn.Module):
    """Knows how many steps it was trained: so its weights tell when they were taken."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.steps: Tensor
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        self.steps += self.training
        scores: Tensor = self.inner(inputs)
        return scores


def scored(scores: dict[int, float], name: str) -> Callable[..., dict[str, Tensor]]:
    """Metrics that are given by the step, and by its last known one in between."""

    def metrics(model: Any, batch: Any) -> dict[str, Tensor]:
        known = max(step for step in scores if step <= int(model.steps))
        return {name: torch.tensor(scores[known])}

    return metrics


def kept(folder: RunFolder) -> tuple[int, dict[str, str]]:
    """The step of the kept weights, by themselves and by what is told about them."""
    with safe_open(folder.weights, framework="pt") as file:
        return int(file.get_tensor("steps")), file.metadata()


# 7 steps an epoch, validated after each.
SCORES = {0: 0.0, 7: 0.3, 14: 0.9, 21: 0.5, 28: 0.9, 35: 0.1}


@pytest.mark.parametrize(("name", "step"), [("accuracy", 28), ("loss", 35), ("error", 35)])
def test_best_weights_are_kept(lab: Lab, tell: Tell, plain: Plain, name: str, step: int) -> None:
    experiment = plain(model=Counting, metrics=scored(SCORES, name), best=name, epochs=5)
    folder = lab.run(experiment)
    best = [line.step for line in tell.metrics(folder, Validated) if line.is_best]
    # At steps 14 and 28 the accuracy is the same, and the loss lower at 28.
    assert best == ([7, 14, 28] if name == "accuracy" else [7, 35])
    taken_at, reported = kept(folder)
    assert taken_at == step and reported["step"] == str(step)
    assert float(reported[name]) == pytest.approx(SCORES[step])
    run = read_run(folder)
    assert run.best_validation is not None and run.best_validation.step == step


def test_last_weights_are_kept_when_nothing_is_validated(lab: Lab, plain: Plain) -> None:
    folder = lab.run(plain(model=Counting, validation_data=None))
    taken_at, reported = kept(folder)
    assert taken_at == 21 and reported["step"] == "21"


def test_best_weights_are_kept_through_a_crash(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(
        model=Counting, metrics=scored(SCORES, "accuracy"), best="accuracy", epochs=5
    )
    folder = lab.new(checkpoint_every=10)
    # The best ones were taken at step 14, and are on the disk since the checkpoint of step 20.
    lab.crash(folder, experiment, 23)
    assert kept(folder)[0] == 14
    lab.go_on(folder, experiment)
    assert kept(folder)[0] == 28


@pytest.mark.parametrize(("losses", "best"), [((0.5, 0.4, 0.6), 14), ((0.5, 0.6, 0.7), 7)])
def test_tie_goes_to_the_lower_validation_loss(
    lab: Lab, plain: Plain, losses: tuple[float, ...], best: int
) -> None:
    def metrics(model: Any, batch: Any) -> dict[str, Tensor]:
        loss = losses[max(int(model.steps) // 7 - 1, 0)]
        return {"accuracy": torch.tensor(0.9), "loss": torch.tensor(loss)}

    experiment = plain(model=Counting, metrics=metrics, best="accuracy", epochs=4, early_stop=2)
    folder = lab.run(experiment)
    assert kept(folder)[0] == best
    # It is no progress all the same: early stopping goes by the metric alone.
    run = read_run(folder)
    assert run.finished is not None and "early stopping" in (run.finished.reason or "")


def test_metric_that_is_not_a_number_is_never_the_best(lab: Lab, tell: Tell, plain: Plain) -> None:
    scores = {0: 0.0, 7: float("nan"), 14: 0.2, 21: float("nan")}
    folder = lab.run(plain(model=Counting, metrics=scored(scores, "accuracy"), best="accuracy"))
    lines = tell.metrics(folder, Validated)
    assert [line.is_best for line in lines] == [False, True, False]
    assert [line.metrics["accuracy"] is None for line in lines] == [True, False, True]
    assert kept(folder)[0] == 14


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_training_stops_when_nothing_gets_better(
    lab: Lab, tell: Tell, plain: Plain, is_interrupted: bool
) -> None:
    experiment = plain(
        model=Counting, metrics=scored(SCORES, "accuracy"), best="accuracy", epochs=9, early_stop=2
    )
    folder = lab.new()
    if is_interrupted:
        lab.go_on(folder, experiment, stop_after=23)
        assert tell.state(folder)["position"]["num_worse"] == 1
    lab.go_on(folder, experiment)
    [finished] = tell.events(folder, Finished)
    assert finished.step == 28
    assert "early stopping" in (finished.reason or "") and "2 validations" in finished.reason
    assert read_run(folder).status == "finished"


def test_validation_comes_every_so_many_steps(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(validate_every=4))
    # And at the end, since the last weights would not be judged otherwise.
    assert [line.step for line in tell.metrics(folder, Validated)] == [4, 8, 12, 16, 20, 21]


def test_moving_average_is_kept_instead_of_the_last_weights(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.run(plain(model=Counting, ema=0.9, validation_data=None))
    with safe_open(folder.weights, framework="pt") as file:
        weight = file.get_tensor("inner.weight")
    state = tell.state(folder)
    assert torch.equal(weight, state["average"]["averages"][0])
    assert not torch.equal(weight, state["model"]["inner.weight"])
