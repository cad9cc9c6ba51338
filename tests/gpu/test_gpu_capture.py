"""Updates in CUDA graphs: the same bits as without them, resumed, with schedules and scalers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, AdamW
from torch.optim.lr_scheduler import LambdaLR

from flatout.engine import Experiment
from flatout.engine.experiment import Experiment as AnyExperiment
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.session.state import state_of
from flatout.engine.step.captured_step import NUM_WARM_UPS, CapturedStep
from flatout.engine.step.step import EagerStep
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.trials import Trials
from flatout.errors import FlatoutError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run_lines import RecipeSet
from flatout.schema.tuning import Candidate, Trial
from flatout.system.store.run_folder import read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


def halving(optimizer: Any) -> LambdaLR:
    """Rates that 24 bits can hold."""
    return LambdaLR(optimizer, lambda step: 0.5 ** (step % 7))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return AdamW(parameters, lr=2**-7)


def convolution() -> nn.Module:
    # No pooling: on a GPU the gradient of most kinds does not repeat bit for bit.
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(16, 16, 3, stride=4), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


def images() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(0)
    return torch.randn(50, 8, 8, 8, generator=dice), torch.arange(50) % 3


PICTURES: dict[str, Any] = {
    "model": convolution, "train_data": images, "validation_data": images,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one by one": ({}, {}),
    "eight per launch": ({}, {"steps_per_launch": 8}),
    "schedule, clipped, averaged": (
        {"schedule": halving, "schedule_every": "step", "clip_norm": 0.5, "ema": 0.9},
        {"steps_per_launch": 4},
    ),
    "sgd": (
        {"optimizer": lambda p: SGD(p, lr=0.125, momentum=0.9, nesterov=True)},
        {"steps_per_launch": 2},
    ),
    "accumulated": ({"clip_norm": 0.5}, {"micro_batch_size": 3, "steps_per_launch": 2}),
    "pictures in bf16": (PICTURES, {"precision": "bf16", "memory_format": "channels_last"}),
    "pictures in fp16 with its scaler": (PICTURES | {"clip_norm": 0.5}, {"precision": "fp16"}),
    "sgd in fp16, whose first updates are left out": (
        {"optimizer": lambda p: SGD(p, lr=0.125, momentum=0.9)},
        {"precision": "fp16"},
    ),
    "read by a loader": ({"train_data": lambda: Points()}, {"loader_workers": 2}),
    "compiled": ({"clip_norm": 0.5}, {"compiled": "loss", "steps_per_launch": 4}),
}


class Points(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        dice = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=dice), index % 3


class Repeating:
    """Graphs whose replays do what was to be recorded, one operation after the other."""

    def __init__(self, graphs: Any) -> None:
        self._graphs = graphs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graphs, name)

    def recorded(self, action: Callable[[], object]) -> Any:
        class Repeated:
            def replay(self) -> None:
                action()

        return Repeated()


def trained(
    experiment: AnyExperiment, use: dict[str, Any], num_updates: int, *, is_captured: bool
) -> tuple[Session, CapturedStep, list[float]]:
    """What so many updates leave, made by graphs or by the same code without them."""
    built = build(experiment, 0, "cuda")
    recipe = built.recipe({"deterministic": True, "capture": "step", **use})
    with process_settings(recipe):
        session = Session(built, recipe)
        session.model.train()
        graphs: Any = session.graphs if is_captured else Repeating(session.graphs)
        parts, timer = session.step_parts(), StepTimer(session.device)
        step = CapturedStep(parts, timer, graphs, recipe.steps_per_launch.value)
        losses: list[Tensor] = []
        epoch = 0
        while len(losses) < num_updates:
            for update in session.feed.updates(epoch, 0):
                losses.append(step.run(update).clone() if not is_captured else step.run(update))
                if session.learning_rates.are_per_step:
                    session.learning_rates.after_update()
                if len(losses) == num_updates:
                    break
            epoch += 1
        step.flush()
        return session, step, [float(loss) for loss in losses]


def assert_alike(one: Session, other: Session) -> None:
    ours, theirs = state_of(one), state_of(other)
    for name, value in ours["model"].items():
        assert torch.equal(value, theirs["model"][name]), name
    for index, state in ours["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, theirs["optimizer"]["state"][index][name])
    assert str(ours["scaler"]) == str(theirs["scaler"])
    assert torch.equal(ours["generators"]["cuda"], theirs["generators"]["cuda"])


@pytest.mark.parametrize("name", CASES)
def test_replays_give_the_bits_of_the_same_step_without_graphs(plain: Plain, name: str) -> None:
    fields, use = CASES[name]
    experiment = plain(**{"optimizer": adamw, **fields})
    ours, step, losses = trained(experiment, use, 60, is_captured=True)
    theirs, _, expected = trained(experiment, use, 60, is_captured=False)
    assert step.problem is None
    assert step.num_replayed >= 60 - 10 - NUM_WARM_UPS
    assert losses == expected
    assert_alike(ours, theirs)


def test_mlp_is_eager_bit_for_bit_over_10_000_steps_with_a_schedule() -> None:
    """Beside flatout's eager step, with rates of 24 bits: nothing of the graph's way is in it."""
    described = load_experiment(ExperimentSpec(name="mlp"))
    experiment = replace(described, schedule=halving, schedule_every="step", optimizer=adamw)
    ours, step, losses = trained(experiment, {"steps_per_launch": 8}, 10_000, is_captured=True)
    built = build(experiment, 0, "cuda")
    recipe = built.recipe({"deterministic": True})
    with process_settings(recipe):
        theirs = Session(built, recipe)
        theirs.model.train()
        eager = EagerStep(theirs.step_parts(), StepTimer(theirs.device))
        expected: list[Tensor] = []
        epoch = 0
        while len(expected) < 10_000:
            for update in theirs.feed.updates(epoch, 0):
                # Kernels are chosen by addresses, too: those of slices are others.
                copied = [(tuple(t.clone() for t in batch), size) for batch, size in update]
                expected.append(eager.run(copied))
                theirs.learning_rates.after_update()
                if len(expected) == 10_000:
                    break
            epoch += 1
        assert losses == [float(loss) for loss in expected]
    assert step.problem is None and step.num_replayed > 9_000
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_adadelta_is_captured_and_stays_near_the_eager_one(plain: Plain) -> None:
    experiment = plain(optimizer=lambda p: Adadelta(p, lr=0.5))
    ours, step, _ = trained(experiment, {}, 40, is_captured=True)
    theirs, _, _ = trained(experiment, {}, 40, is_captured=False)
    assert step.problem is None and step.num_replayed
    assert_alike(ours, theirs)


@pytest.mark.parametrize(
    "name", ["eight per launch", "accumulated", "pictures in fp16 with its scaler"]
)
def test_captured_run_goes_on_bit_for_bit(lab: Lab, tell: Tell, plain: Plain, name: str) -> None:
    fields, use = CASES[name]
    experiment = plain(**{**fields, "epochs": 5})
    use = {**use, "capture": "step", "checkpoint_every": 6}
    whole = lab.run(experiment, **use)
    parts = lab.new(**use)
    # Recorded calls of the loss count, too.
    for calls in (3, 7):
        lab.go_on(parts, experiment, stop_after=calls)
    lab.go_on(parts, experiment)
    assert tell.traces(parts) == tell.traces(whole)


def reading(model: nn.Module, batch: Any) -> Tensor:
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return value if value.item() > 0 else value * 2


def drawing(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) * random.uniform(0.5, 1.5)


def moving(model: nn.Module, batch: Any) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 1.0]).to(batch[0].device)
    return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=weights)


@pytest.mark.parametrize(
    ("loss", "reason"), [(reading, "waits"), (drawing, "generator"), (moving, "waits")]
)
def test_what_a_graph_cannot_repeat_is_reported(
    lab: Lab, tell: Tell, plain: Plain, loss: Any, reason: str
) -> None:
    folder = lab.new(capture="step")
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(folder, plain(loss=loss))
    assert caught.value.rule == "step-not-captured"
    assert reason in (caught.value.because or "")
    # The process can go on, and so can the run.
    lab.go_on(folder, plain(loss=loss), capture="off")


def test_own_generator_on_the_gpu_is_reported(lab: Lab, plain: Plain) -> None:
    dice = torch.Generator("cuda").manual_seed(0)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        noise = torch.rand(batch[0].shape, generator=dice, device=batch[0].device)
        return nn.functional.cross_entropy(model(batch[0] + 0.1 * noise), batch[1])

    with pytest.raises(FlatoutError) as caught:
        lab.run(plain(loss=loss), capture="step")
    assert caught.value.rule == "step-not-captured"


def test_masks_differ_from_replay_to_replay(plain: Plain) -> None:
    seen: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        mask = nn.functional.dropout(torch.ones(64, device=batch[0].device), 0.5)
        seen.append(mask)
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) + 0 * mask.sum()

    built = build(plain(loss=loss), 0, "cuda")
    recipe = built.recipe({"capture": "step"})
    with process_settings(recipe):
        session = Session(built, recipe)
        session.model.train()
        assert session.graphs is not None
        step = CapturedStep(session.step_parts(), StepTimer(session.device), session.graphs, 1)
        updates = list(session.feed.updates(0, 0))[:6]
        for update in updates[: NUM_WARM_UPS + 1]:
            step.run(update)
        masks = []
        for update in updates[NUM_WARM_UPS + 1 :]:
            step.run(update)
            masks.append(seen[-1].clone())
    assert step.num_replayed == len(masks) + 1
    assert not torch.equal(masks[0], masks[1])


def test_memory_that_a_graph_does_not_find_is_done_without(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    """Its pool is its own: what eager steps need is there twice while it is recorded."""
    device = torch.device("cuda")
    total = torch.cuda.get_device_properties(device).total_memory

    def limiting(model: nn.Module, batch: Any) -> Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(total, dtype=torch.uint8, device=device)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    folder = lab.run(plain(loss=limiting), capture="step")
    [adaptation] = read_run(folder).adaptations
    assert (adaptation.kind, adaptation.part) == ("uncaptured", "capture")
    assert tell.events(folder, RecipeSet)[-1].recipe.capture.value == "off"


@pytest.mark.parametrize("num_steps", [1, 8])
def test_search_sees_replays_and_the_gate_agrees(num_steps: int) -> None:
    trials = Trials(
        TuningTask(experiment=load_experiment(ExperimentSpec(name="mlp")), device_name="cuda")
    )
    changes = {"capture": "step", "steps_per_launch": num_steps}
    candidate = Candidate(name="graph", axis="capture", changes=changes, why="launches")
    base: dict[str, Any] = {"optimizer_implementation": "fused"}
    trial = Trial(stage="screen", candidate=candidate, incumbent=base, changes={**base, **changes})
    result = trials.measured(trial, 1.0)
    assert result.problem is None and result.effect is not None
    assert "replayed" in result.effect
    assert result.speedup is not None and result.speedup.middle > 1
    verdict = trials.judged(trial.changes)
    assert verdict.is_passed, verdict.failed
