"""An experiment's own step: several optimizers, each with updates of its own."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from flatout.engine import Experiment, Updates
from flatout.engine.session.session import build
from flatout.errors import FlatoutError, UsageError
from flatout.schema.run_lines import EpochEnded, Progress

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
STOPS = (1, 7, 10, 16)

_SPEC = importlib.util.spec_from_file_location(
    "gan_example", Path(__file__).parents[2] / "examples" / "gan.py"
)
assert _SPEC is not None and _SPEC.loader is not None
gan = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gan)


def pair() -> nn.Module:
    """Two networks without randomness of their own."""
    draws = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))
    judges = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return nn.ModuleDict({"draws": draws, "judges": judges})


def optimizers(named: Any) -> dict[str, torch.optim.Optimizer]:
    named = list(named)
    return {
        part: torch.optim.Adam([p for name, p in named if name.startswith(part)], lr=0.01)
        for part in ("draws", "judges")
    }


def losses_of_judge(model: Any, inputs: Tensor, drawn: Tensor) -> Tensor:
    scores = softplus(-model["judges"](inputs)).mean()
    return scores + softplus(model["judges"](drawn.detach())).mean()


def step(updates: Updates, model: Any, batch: Any) -> dict[str, Tensor]:
    inputs, _ = batch
    drawn = model["draws"](inputs)
    reported = {"judges": updates["judges"](losses_of_judge(model, inputs, drawn))}
    reported["draws"] = updates["draws"](softplus(-model["judges"](drawn)).mean())
    return reported


def error(model: Any, batch: Any) -> dict[str, Tensor]:
    return {"error": (model["draws"](batch[0]) - batch[0]).square().mean()}


PAIR: dict[str, Any] = {
    "model": pair, "optimizer": optimizers, "named_parameters": True, "loss": None, "step": step,
    "metrics": error, "best": "error",
}  # fmt: skip


def plain_loop(experiment: Experiment, precision: str) -> tuple[nn.Module, list[dict[str, float]]]:
    """What a person would write: an autocast for each forward pass, gradients set to zero."""
    model = build(experiment, 0, "cpu").model
    made = optimizers(model.named_parameters())
    inputs = experiment.train_data()[0]
    reported = []

    def autocast() -> Any:
        is_bf16 = precision == "bf16"
        return torch.autocast("cpu", torch.bfloat16) if is_bf16 else contextlib.nullcontext()

    def update(name: str, loss: Tensor) -> None:
        for optimizer in made.values():
            optimizer.zero_grad()
        loss.backward()
        if experiment.clip_norm is not None:
            nn.utils.clip_grad_norm_(model[name].parameters(), experiment.clip_norm)
        made[name].step()

    for batch in inputs.split(8):
        with autocast():
            drawn = model["draws"](batch)
            judged = losses_of_judge(model, batch, drawn)
        update("judges", judged)
        with autocast():
            draw = softplus(-model["judges"](drawn)).mean()
        update("draws", draw)
        reported.append({"judges": judged.item(), "draws": draw.item()})
    return model, reported


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_own_step_is_that_of_a_plain_loop(
    lab: Lab, tell: Tell, plain: Plain, precision: str, clip_norm: float | None
) -> None:
    experiment = plain(**PAIR, shuffle=False, epochs=1, clip_norm=clip_norm)
    folder = lab.new(precision=precision, optimizer_implementation="own")
    trained = lab.go_on(folder, experiment)
    model, reported = plain_loop(experiment, precision)
    for one, two in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two)
    [line] = tell.metrics(folder, EpochEnded)
    sizes = [8] * 6 + [2]
    for name in ("judges", "draws"):
        mean = sum(one[name] * size for one, size in zip(reported, sizes, strict=True)) / 50
        assert line.losses[name] == pytest.approx(mean, rel=1e-6)
    assert line.loss == pytest.approx(sum(line.losses.values()))


def every_third(updates: Updates, model: Any, batch: Any) -> dict[str, Tensor]:
    """The one that draws is updated in every third step alone; noise in each."""
    inputs, _ = batch
    drawn = model["draws"](inputs + torch.randn_like(inputs))
    reported = {"judges": updates["judges"](losses_of_judge(model, inputs, drawn))}
    if updates.step % 3 == 0:
        reported["draws"] = updates["draws"](softplus(-model["judges"](drawn)).mean())
    return reported


def schedules(made: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.optim.lr_scheduler.StepLR(one, 3, 0.5) for name, one in made.items()}


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "every third": {"step": every_third},
    "bf16": {"use": {"precision": "bf16"}},
    "schedules by name": {"schedule": schedules, "schedule_every": "step"},
    "one schedule": {"schedule": lambda made: torch.optim.lr_scheduler.StepLR(made["draws"], 1)},
    "plateau": {
        "schedule": lambda made: {
            "draws": torch.optim.lr_scheduler.ReduceLROnPlateau(made["draws"], patience=0),
            "judges": torch.optim.lr_scheduler.ExponentialLR(made["judges"], 0.7),
        }
    },
    "average, clipped": {"ema": 0.9, "clip_norm": 0.1},
}


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_of_an_own_step_is_identical(
    lab: Lab, tell: Tell, plain: Plain, name: str
) -> None:
    fields = dict(CASES[name])
    use = fields.pop("use", {})
    experiment = plain(**PAIR | fields)
    whole, parts = lab.run(experiment, **use), lab.new(**use)
    for stop in (STOPS[0], STOPS[1], STOPS[0]):
        lab.go_on(parts, experiment, stop_after=stop)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)


def test_gan_example_goes_on_exactly_and_changes_both_networks(lab: Lab, tell: Tell) -> None:
    lab.use["precision"] = "bf16"
    experiment = gan.experiment(epochs=2)
    whole, parts = lab.run(experiment), lab.new()
    lab.crash(parts, experiment, 30)
    lab.go_on(parts, experiment, stop_after=5)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)
    before = build(experiment, 0, "cpu").model.state_dict()
    after = tell.state(whole)["model"]
    assert not any(torch.equal(before[name], after[name]) for name in before if "weight" in name)


def test_rates_of_several_optimizers_are_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    def halved(made: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(made["judges"], 0.5)

    folder = lab.run(plain(**PAIR, schedule=halved))
    last = tell.metrics(folder, Progress)[-1]
    # By the clock, the last line may have been written before the last epoch has ended.
    assert last.learning_rates in [{"draws": 0.01, "judges": rate} for rate in (0.0025, 0.00125)]
    assert last.learning_rate == 0.01 and set(last.losses) == {"draws", "judges"}


# What an update does to gradients.


def test_update_reaches_the_weights_of_its_own_optimizer_alone(lab: Lab, plain: Plain) -> None:
    seen = []

    def looking(updates: Updates, model: Any, batch: Any) -> Tensor:
        others = list(model["judges"].parameters())
        for parameter in others:
            parameter.grad = torch.full_like(parameter, 7.0)
        for parameter in model["draws"].parameters():
            parameter.grad = torch.full_like(parameter, torch.inf)
        before = [parameter.detach().clone() for parameter in others]
        loss = updates["draws"](softplus(-model["judges"](model["draws"](batch[0]))).mean())
        seen.append(all(bool((parameter.grad == 7.0).all()) for parameter in others))
        seen.append(all(parameter.grad is None for parameter in model["draws"].parameters()))
        pairs = zip(before, others, strict=True)
        seen.append(all(torch.equal(one, parameter) for one, parameter in pairs))
        return loss

    lab.run(plain(**PAIR | {"step": looking}, epochs=1))
    assert len(seen) == 21 and all(seen)


def test_one_forward_pass_serves_two_updates(lab: Lab, tell: Tell, plain: Plain) -> None:
    def both(updates: Updates, model: Any, batch: Any) -> Tensor:
        loss = model["judges"](model["draws"](batch[0])).square().mean()
        updates["draws"](loss, retain_graph=True)
        return updates["judges"](loss)

    folder = lab.run(plain(**PAIR | {"step": both}, epochs=1))
    state = tell.state(folder)["optimizer"]
    assert {int(one["step"]) for part in state.values() for one in part["state"].values()} == {7}


def test_single_optimizer_makes_several_updates_of_a_batch(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def twice(updates: Updates, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        inputs, labels = batch
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            updates["optimizer"](loss)
        return loss * len(labels), len(labels)

    def accuracy(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}

    fields: dict[str, Any] = {"loss": None, "step": twice, "metrics": accuracy, "best": "accuracy"}
    folder = lab.run(plain(**fields, epochs=1))
    state = tell.state(folder)
    assert state["position"]["step"] == 7
    assert {int(one["step"]) for one in state["optimizer"]["state"].values()} == {14}
    assert tell.metrics(folder, EpochEnded)[0].losses == {}


# Losses that are not finite.


def poisoned(updates: Updates, model: Any, batch: Any) -> dict[str, Tensor]:
    """In the third step the loss of the one that judges is not a number."""
    factor = torch.nan if updates.step == 2 else 1.0
    clean = model["draws"](batch[0])
    drawn = model["draws"](batch[0] * factor)
    reported = {"judges": updates["judges"](losses_of_judge(model, batch[0], drawn))}
    reported["draws"] = updates["draws"](clean.square().mean())
    return reported


def test_update_with_a_nan_is_left_out_when_asked(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(**PAIR | {"step": poisoned}, epochs=1)
    folder = lab.run(experiment, nonfinite_loss="skip")
    state = tell.state(folder)
    counts = {
        name: {int(one["step"]) for one in part["state"].values()}
        for name, part in state["optimizer"].items()
    }
    assert counts == {"judges": {6}, "draws": {7}}
    # What the bad forward pass did to BatchNorm's averages is undone.
    assert all(bool(value.isfinite().all()) for value in state["model"].values())
    assert "nonfinite-loss" in tell.rules(folder)
    [line] = tell.metrics(folder, EpochEnded)
    assert set(line.losses) == {"judges", "draws"} and line.loss is not None


def test_nan_in_an_own_step_stops_the_run(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(folder, plain(**PAIR | {"step": poisoned}))
    assert caught.value.rule == "nonfinite-loss" and "step 3" in caught.value.problem


# Several optimizers that share a loss.


@pytest.mark.parametrize("micro", [8, 3])
def test_several_optimizers_share_the_loss_when_there_is_no_step(
    lab: Lab, tell: Tell, plain: Plain, micro: int
) -> None:
    def halves(named: Any) -> dict[str, torch.optim.Optimizer]:
        first, second, *rest = [parameter for _, parameter in named]
        return {"sgd": torch.optim.SGD([first, second], lr=0.5), "adam": torch.optim.Adam(rest)}

    def linear() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    experiment = plain(
        model=linear, optimizer=halves, named_parameters=True, shuffle=False, epochs=1,
        clip_norm=0.1,
    )  # fmt: skip
    trained = lab.go_on(lab.new(micro_batch_size=micro), experiment)
    model = build(experiment, 0, "cpu").model
    made = halves(model.named_parameters()).values()
    for batch in zip(*(tensor.split(8) for tensor in experiment.train_data()), strict=True):
        experiment.loss(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
    for one, two in zip(trained.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


# What cannot be.


def returning(reported: Any) -> Callable[..., Any]:
    def one(updates: Updates, model: Any, batch: Any) -> Any:
        updates["draws"](model["draws"](batch[0]).square().mean())
        return reported(model, batch) if callable(reported) else reported

    return one


def calling_with(name: str, loss: Callable[..., Any]) -> Callable[..., Any]:
    return lambda updates, model, batch: updates[name](loss(model, batch[0]))


WRONG: dict[str, tuple[Any, str, str]] = {
    "nothing": (returning(None), "loss-is-not-a-scalar", "None"),
    "a number": (returning(0.5), "loss-is-not-a-scalar", "a float"),
    "an empty dict": (returning({}), "loss-is-not-a-scalar", "a dict"),
    "one for each": (returning(lambda m, b: b[0]), "loss-is-not-a-scalar", "of shape"),
    "no update": (lambda u, m, b: b[0].mean(), "step-without-update", "changed no weights"),
    "other name": (calling_with("drawz", lambda m, x: m["draws"](x).mean()), "unknown-optimizer",
                   "drawz"),
    "other weights": (calling_with("draws", lambda m, x: m["judges"](x).mean()),
                      "loss-is-not-a-scalar", "does not depend"),
    "a detached loss": (calling_with("draws", lambda m, x: m["draws"](x).mean().detach()),
                        "loss-is-not-a-scalar", "does not depend"),
    "many losses": (calling_with("draws", lambda m, x: m["draws"](x)), "loss-is-not-a-scalar",
                    "of shape (8, 6)"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_step_that_does_not_do_its_part_is_refused(lab: Lab, plain: Plain, name: str) -> None:
    own, rule, words = WRONG[name]
    with pytest.raises(FlatoutError) as caught:
        lab.run(plain(**PAIR | {"step": own}))
    assert caught.value.rule == rule and words in caught.value.problem


def test_error_in_an_own_step_is_reported_with_its_place(lab: Lab, plain: Plain) -> None:
    def broken(updates: Updates, model: Any, batch: Any) -> Tensor:
        # Changed between forward and backward: torch notices in the update.
        hidden = model["draws"](batch[0]).exp()
        loss = hidden.sum()
        hidden.mul_(2)
        return updates["draws"](loss)

    with pytest.raises(FlatoutError) as caught:
        lab.run(plain(**PAIR | {"step": broken}))
    assert caught.value.rule == "experiment-raised" and "inplace" in caught.value.problem
    assert "test_engine_custom_step.py" in (caught.value.because or "")


def test_micro_batches_are_refused_with_an_own_step(lab: Lab, plain: Plain) -> None:
    with pytest.raises(UsageError) as caught:
        lab.run(plain(**PAIR), micro_batch_size=4)
    assert caught.value.rule == "recipe-does-not-fit" and "`step`" in caught.value.problem


@pytest.mark.parametrize("made", [{}, {"draws": 3}, None, [1]], ids=str)
def test_what_is_no_optimizer_is_refused(lab: Lab, plain: Plain, made: Any) -> None:
    with pytest.raises(UsageError) as caught:
        lab.run(plain(**PAIR | {"optimizer": lambda named: made}))
    assert caught.value.rule == "bad-experiment" and "`optimizer` returned" in caught.value.problem


def test_other_optimizers_on_resume_are_refused(lab: Lab, plain: Plain) -> None:
    folder = lab.new()
    lab.go_on(folder, plain(**PAIR), stop_after=2)

    def renamed(named: Any) -> dict[str, Any]:
        return dict(zip(("draws", "others"), optimizers(named).values(), strict=True))

    with pytest.raises(UsageError) as caught:
        lab.go_on(folder, plain(**PAIR | {"optimizer": renamed}))
    assert caught.value.rule == "experiment-changed" and "others" in (caught.value.because or "")


@pytest.mark.parametrize(
    "fields",
    [{"loss": lambda m, b: b}, {"step": None}, {"metrics": None}],
    ids=["both", "neither", "nothing to validate by"],
)
def test_own_step_is_refused_when_it_is_half(plain: Plain, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        plain(**PAIR | fields)
    assert caught.value.rule == "bad-experiment"
