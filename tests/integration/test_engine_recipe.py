"""Recipe fields take effect or say that they do not; their changes are replayed as they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.errors import UsageError
from flatout.schema.run_lines import Finished, RecipeSet, Started
from flatout.system.store.run_folder import read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


class Points(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(6), index % 3


class Stream:
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for index in range(24):
            yield torch.randn(6), index % 3


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3))


def images() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    return torch.randn(24, 2, 4, 4, generator=dice), torch.arange(24) % 3


# Changes on resume, and their replay.


def test_changed_recipe_is_recorded_when_resumed(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    lab.go_on(folder, plain(), stop_after=5)
    lab.go_on(folder, plain(), micro_batch_size=3)
    first, second = tell.events(folder, RecipeSet)
    assert (first.step, second.step) == (0, 5)
    assert second.recipe.micro_batch_size.value == 3
    assert second.recipe.micro_batch_size.origin == "yours"
    assert second.recipe.num_threads == first.recipe.num_threads


@pytest.mark.parametrize(
    "change",
    [
        {"micro_batch_size": 3},
        {"optimizer_implementation": "for-loop"},
        {"optimizer_implementation": "own"},
        {"clip_norm": 0.1},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_changed_recipe_is_replayed_from_a_checkpoint_before_it(
    lab: Lab, tell: Tell, plain: Plain, change: dict[str, Any]
) -> None:
    whole = lab.new(checkpoint_every=4)
    lab.go_on(whole, plain(), stop_after=10)
    lab.go_on(whole, plain(), **change)
    parts = lab.new(checkpoint_every=4)
    lab.go_on(parts, plain(), stop_after=10)
    lab.crash(parts, plain(), 2, **change)
    # Only the checkpoint of step 8 is left: the change at step 10 has to be made once more.
    shutil.rmtree(parts.checkpoints / "000010")
    lab.go_on(parts, plain())
    assert tell.traces(parts) == tell.traces(whole)
    assert len(tell.events(parts, RecipeSet)) == 2


def test_later_decision_wins_when_an_older_one_lies_ahead(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    runs = []
    for is_crashed in (False, True):
        folder = lab.new(checkpoint_every=4)
        lab.go_on(folder, plain(), stop_after=10)
        lab.go_on(folder, plain(), stop_after=2, micro_batch_size=3)
        for step in ("000010", "000012"):
            shutil.rmtree(folder.checkpoints / step, ignore_errors=True)
        folder = prepared(lab, plain, folder)
        lab.go_on(folder, plain(), stop_after=3 if is_crashed else None, clip_norm=0.1)
        if is_crashed:
            lab.go_on(folder, plain(), stop_after=8)
            lab.go_on(folder, plain())
        runs.append(folder)
    assert tell.traces(runs[0]) == tell.traces(runs[1])
    run = read_run(runs[0])
    assert run.recipe is not None and run.recipe.clip_norm.value == 0.1
    assert run.recipe.micro_batch_size.value == 8


def prepared(lab: Lab, plain: Plain, folder: Any) -> Any:
    """The same history, with a checkpoint of step 4 alone."""
    early = lab.new(checkpoint_every=4)
    lab.go_on(early, plain(), stop_after=4)
    shutil.rmtree(folder.checkpoints)
    shutil.copytree(early.checkpoints, folder.checkpoints)
    shutil.copy(early.metrics, folder.metrics)
    return folder


def test_recipe_that_is_refused_is_not_recorded(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(optimizer=lambda parameters: torch.optim.Rprop(parameters))
    whole = lab.run(experiment)
    folder = lab.new()
    lab.go_on(folder, experiment, stop_after=4)
    for change, rule in (
        ({"precision": "fp16"}, "precision-not-here"),
        ({"optimizer_implementation": "fused"}, "optimizer-has-no-such-implementation"),
        ({"data_path": "loader"}, "recipe-does-not-fit"),
        ({"device": "cuda:77"}, "device-not-here"),
        ({"num_threads": 0}, "bad-recipe-value"),
    ):
        with pytest.raises(UsageError) as caught:
            lab.go_on(folder, experiment, **change)
        assert caught.value.rule == rule
        assert tell.failure(folder).rule == rule
    assert len(tell.events(folder, RecipeSet)) == 1
    lab.go_on(folder, experiment)
    assert tell.traces(folder) == tell.traces(whole)


# Length.


def test_extended_run_is_that_of_the_longer_one(lab: Lab, tell: Tell, plain: Plain) -> None:
    whole = lab.run(plain(epochs=5))
    folder = lab.run(plain(epochs=2))
    lab.go_on(folder, plain(epochs=2), epochs=4, stop_after=9)
    lab.go_on(folder, plain(epochs=2))
    lab.go_on(folder, plain(epochs=2), epochs=5)
    assert tell.traces(folder) == tell.traces(whole)
    assert len(tell.events(folder, Finished)) == 3


def test_finished_run_is_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain())
    before = tell.traces(folder)
    for epochs in (None, 3):
        with pytest.raises(UsageError) as caught:
            lab.go_on(folder, plain(), epochs=epochs)
        assert caught.value.rule == "run-is-finished"
    assert tell.traces(folder) == before


def test_run_of_steps_ends_in_the_middle_of_an_epoch(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(epochs=None, steps=10))
    assert tell.events(folder, Started)[0].num_steps == 10
    assert tell.state(folder)["position"]["step"] == 10
    assert tell.state(folder)["position"]["num_samples_seen"] == 50 + 3 * 8


# Every field takes effect or says that it has none.

NO_EFFECT: dict[str, dict[str, Any]] = {
    "loader_workers": {"loader_workers": 2},
    "loader_prefetch": {"loader_prefetch": 4},
    "loader_pin_memory": {"loader_pin_memory": True},
    "loader_persistent": {"loader_persistent": True},
    "data_path": {"data_path": "resident"},
    "micro_batch_size": {"micro_batch_size": 1000},
    "memory_format": {"memory_format": "channels_last"},
}


@pytest.mark.parametrize("name", NO_EFFECT)
def test_field_without_effect_is_reported(lab: Lab, tell: Tell, plain: Plain, name: str) -> None:
    folder = lab.run(plain(epochs=1), **NO_EFFECT[name])
    reported = [one for one in tell.findings(folder) if one.rule == "setting-without-effect"]
    assert len(reported) == 1 and f"`{name}`" in reported[0].problem


@pytest.mark.parametrize(
    ("use", "reported"),
    [
        ({"loader_workers": 0, "loader_prefetch": 3}, {"loader_prefetch"}),
        ({"loader_workers": 0, "loader_persistent": True}, {"loader_persistent"}),
        ({"loader_workers": 1, "loader_prefetch": 3, "loader_persistent": True}, set()),
        ({"loader_workers": 0, "loader_pin_memory": True}, {"loader_pin_memory"}),
        ({"loader_workers": 0, "loader_persistent": False, "loader_pin_memory": False}, set()),
    ],
    ids=str,
)
def test_loader_field_without_effect_is_reported(
    lab: Lab, tell: Tell, plain: Plain, use: dict[str, Any], reported: set[str]
) -> None:
    folder = lab.run(plain(train_data=Points, epochs=1), **use)
    problems = [f.problem for f in tell.findings(folder) if f.rule == "setting-without-effect"]
    assert {problem.split("`")[1] for problem in problems} == reported


def test_persistent_workers_of_a_stream_are_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(train_data=Stream, epochs=1)
    folder = lab.run(experiment, loader_workers=1, loader_persistent=True)
    problems = [f.problem for f in tell.findings(folder) if f.rule == "setting-without-effect"]
    assert ["loader_persistent" in problem for problem in problems] == [True]


def test_batch_norm_with_micro_batches_is_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    rule = "batch-norm-sees-micro-batches"
    assert rule in tell.rules(lab.run(plain(epochs=1), micro_batch_size=4))
    assert rule not in tell.rules(lab.run(plain(epochs=1)))


def seen_in_forward(lab: Lab, experiment: Experiment, **use: Any) -> list[Any]:
    """What a hook on the first layer sees in training: dtype and strides of input and output."""
    import dataclasses

    seen: list[Any] = []

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        channels_last = inputs[0].dim() == 4 and inputs[0].is_contiguous(
            memory_format=torch.channels_last
        )
        seen.append((inputs[0].dtype, output.dtype, channels_last, torch.get_num_threads(),
                     torch.are_deterministic_algorithms_enabled(), len(output)))  # fmt: skip

    def model() -> nn.Module:
        made = experiment.model()
        next(made.children()).register_forward_hook(hook)
        return made

    lab.run(dataclasses.replace(experiment, model=model, validation_data=None), **use)
    return seen


def test_fields_of_the_step_reach_the_forward_pass(lab: Lab, plain: Plain) -> None:
    experiment = plain(epochs=1)
    plainly = seen_in_forward(lab, experiment)
    assert plainly[0] == (torch.float32, torch.float32, False, 1, True, 8)
    assert [one[5] for one in plainly] == [8] * 6 + [2]
    assert seen_in_forward(lab, experiment, precision="bf16")[0][1] == torch.bfloat16
    assert seen_in_forward(lab, experiment, num_threads=2)[0][3] == 2
    assert seen_in_forward(lab, experiment, deterministic=False)[0][4] is False
    sizes = [one[5] for one in seen_in_forward(lab, experiment, micro_batch_size=3)]
    assert sizes == [3, 3, 2] * 6 + [2]


def test_memory_format_reaches_inputs_and_weights(lab: Lab, plain: Plain) -> None:
    experiment = plain(model=convolution, train_data=images, epochs=1)
    assert not seen_in_forward(lab, experiment)[0][2]
    assert seen_in_forward(lab, experiment, memory_format="channels_last")[0][2]
    folder = lab.new(memory_format="channels_last")
    model = lab.go_on(folder, plain(model=convolution, train_data=images, validation_data=images))
    weight = model[0].weight  # type: ignore[index]
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_memory_format_can_be_changed_on_resume(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(model=convolution, train_data=images, validation_data=images, ema=0.9)
    weights = []
    for formats in (("contiguous", "channels_last"), ("contiguous", "contiguous")):
        folder = lab.new(memory_format=formats[0])
        lab.go_on(folder, experiment, stop_after=5)
        lab.go_on(folder, experiment, memory_format=formats[1])
        weights.append(tell.state(folder)["model"]["0.weight"])
    assert weights[0].stride() != weights[1].stride()
    assert torch.allclose(weights[0], weights[1], atol=1e-5)


@pytest.mark.parametrize(
    ("implementation", "flags"),
    [("own", (None, None)), ("for-loop", (False, False)), ("foreach", (True, False)),
     ("fused", (False, True))],
)  # fmt: skip
def test_optimizer_implementation_is_used_also_after_a_resume(
    lab: Lab, tell: Tell, plain: Plain, implementation: str, flags: tuple[Any, Any]
) -> None:
    folder = lab.new(optimizer_implementation="fused")
    lab.go_on(folder, plain(), stop_after=5)
    lab.go_on(folder, plain(), stop_after=5, optimizer_implementation=implementation)
    [group] = tell.state(folder)["optimizer"]["param_groups"]
    assert (group["foreach"], group["fused"]) == flags
    lab.go_on(folder, plain())


def test_clip_norm_and_checkpoint_every_take_effect(lab: Lab, tell: Tell, plain: Plain) -> None:
    sgd = plain(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0), epochs=None,
                steps=1)  # fmt: skip
    start = sgd_start(plain)
    folder = lab.run(sgd, clip_norm=1e-3)
    moved = [tell.state(folder)["model"][name] - value for name, value in start.items()]
    norm = torch.cat([change.flatten() for change in moved]).norm()
    assert norm == pytest.approx(1e-3, rel=1e-2)
    # Kept are the last two.
    assert lab.run(plain(), checkpoint_every=3).checkpoint_steps() == [18, 21]


def sgd_start(plain: Plain) -> dict[str, Tensor]:
    from flatout.engine.session.session import build

    return {
        name: p.detach().clone() for name, p in build(plain(), 0, None).model.named_parameters()
    }
