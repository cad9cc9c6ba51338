"""A mistake in the validation is told before the first step, and touches nothing of a training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment, confusion
from flatout.engine.model.module_attributes import restore
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.training import trainer
from flatout.engine.training.api import train_in
from flatout.errors import FlatoutError
from flatout.schema.change import Change
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import EpochEnded, Profiled, Progress, Started, Validated
from flatout.schema.tuning import TuneRequest
from flatout.system import atomic_files

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


def accuracy(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}


def with_a_typo(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"accuracy": accurracy(model, batch)}  # type: ignore[name-defined]  # noqa: F821


def of_each_sample(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float()}


def narrow() -> tuple[Tensor, Tensor]:
    return torch.zeros(20, 5), torch.zeros(20).long()


def unreduced(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "best names nothing": ({"metrics": accuracy, "best": "acc"}, "unknown-metric"),
    "metrics raises": ({"metrics": with_a_typo}, "experiment-raised"),
    "a metric per sample": ({"metrics": of_each_sample}, "metric-is-not-a-scalar"),
    "other shapes": ({"validation_data": narrow}, "experiment-raised"),
    # Told of the training, where it belongs.
    "the loss per sample": ({"loss": unreduced}, "loss-is-not-a-scalar"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_before_the_first_step(
    lab: Lab, tell: Tell, plain: Plain, mistake: str
) -> None:
    fields, rule = MISTAKES[mistake]
    folder = lab.new()
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(folder, plain(**fields))
    assert caught.value.rule == rule
    assert not tell.events(folder, Started) and not tell.metrics(folder)
    assert tell.failure(folder).rule == rule


def test_mistake_of_loss_is_reported_where_it_is_made(lab: Lab, tell: Tell, plain: Plain) -> None:
    def broken(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]) @ model(batch[0])

    folder = lab.new()
    with pytest.raises(FlatoutError):
        lab.go_on(folder, plain(loss=broken, metrics=accuracy, best="acc"))
    assert "in broken" in (tell.failure(folder).because or "")


def test_labels_that_are_too_few_are_reported_once_and_before_the_first_step(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def metrics(model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"classes": confusion(model(batch[0]), batch[1])}

    folder = lab.run(plain(metrics=metrics, labels=["one", "two"], best="macro_f1"))
    kinds = [type(line) for line in tell.events(folder)]
    reported = [finding for finding in tell.findings(folder) if finding.rule == "labels-do-not-fit"]
    assert len(reported) == 1
    assert kinds.index(Started) > [f.rule for f in tell.findings(folder)].index("labels-do-not-fit")


class Drawing(nn.Module):
    """Draws in evaluation mode too, and counts its passes in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.last = nn.Linear(8, 3)
        self.passes: Tensor
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        scores: Tensor = self.last(self.inner(inputs) + 0.01 * torch.randn(len(inputs), 8))
        return scores * (1 + 0.01 * random.random())


class Augmented(torch.utils.data.Dataset[Any]):
    """Another view of a sample each time."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(6) + random.random(), index % 3


class Stream:
    """Samples in the order in which they come; has_state: it knows where it is."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for index in range(50):
            yield torch.randn(6), index % 3


class StatefulStream(Stream):
    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while self.at < 50:
            self.at += 1
            yield torch.randn(6), self.at % 3
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tensors": ({}, {}),
    "augmented": ({"train_data": Augmented, "validation_data": Augmented}, {}),
    "workers": (
        {"train_data": Augmented, "validation_data": Augmented},
        {"loader_workers": 1},
    ),
    "workers that end": (
        {"train_data": Augmented, "validation_data": Augmented},
        {"loader_workers": 1, "loader_persistent": False},
    ),
    "iterable": ({"train_data": Stream, "validation_data": Stream}, {}),
    "stateful": ({"train_data": StatefulStream, "validation_data": Stream}, {}),
    "accumulated": ({}, {"micro_batch_size": 3}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_checked_training_is_the_unchecked_one_bit_for_bit(
    lab: Lab, tell: Tell, plain: Plain, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    fields, use = KINDS[kind]
    experiment = plain(model=Drawing, ema=0.9, epochs=2, **fields)
    checked = lab.run(experiment, **use)
    monkeypatch.setattr(trainer, "check_validation", lambda *_: None)
    unchecked = lab.run(experiment, **use)
    assert tell.traces(checked) == tell.traces(unchecked)


def test_check_looks_at_one_batch_and_only_at_a_new_run(lab: Lab, tell: Tell, plain: Plain) -> None:
    sizes: list[int] = []

    def metrics(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        sizes.append(len(batch[0]))
        return accuracy(model, batch)

    folder = lab.new()
    lab.go_on(folder, plain(metrics=metrics), stop_after=3)
    assert sizes == [8]
    lab.go_on(folder, plain(metrics=metrics))
    assert sizes == [8, *[8, 8, 4] * 3]


def test_check_without_memory_leaves_it_to_the_validation(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    num_calls = 0

    def metrics(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return accuracy(model, batch)

    folder = lab.run(plain(metrics=metrics))
    assert tell.metrics(folder, Validated) and not tell.findings(folder)


def failing_late(when: int) -> Callable[..., dict[str, Tensor]]:
    """Metrics that raise in their so-many-th call."""
    num_calls = 0

    def metrics(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        nonlocal num_calls
        num_calls += 1
        if num_calls == when:
            raise ValueError("only one class present")
        return accuracy(model, batch)

    return metrics


@pytest.mark.parametrize("every", ["epoch", 5])
def test_mistake_that_comes_late_loses_no_step(
    lab: Lab, tell: Tell, plain: Plain, every: Any
) -> None:
    whole = lab.run(plain(metrics=accuracy, validate_every=every))
    folder = lab.new()
    with pytest.raises(FlatoutError):
        # One batch is tried, then three make a validation: the second one fails.
        lab.go_on(folder, plain(metrics=failing_late(6), validate_every=every))
    assert tell.state(folder)["position"]["step"] == (14 if every == "epoch" else 10)
    lab.go_on(folder, plain(metrics=accuracy, validate_every=every))
    assert tell.traces(folder) == tell.traces(whole)
    ends = [line.epoch for line in tell.metrics(folder, EpochEnded)]
    assert ends == [0, 1, 2]


def test_check_takes_no_time_of_the_rates(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain())
    split_s = tell.metrics(folder, Progress)[0].split_s
    assert split_s["validation"] > 0


def test_mistake_is_reported_before_a_search(
    lab: Lab, tell: Tell, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(search: Any) -> None:
        # What the search has seen of a step does not matter here.
        profile: Any = None
        search.on_event(Profiled(at=0.0, step=0, profile=profile, num_candidates=1, budget_s=1.0))
        raise AssertionError("it has begun")

    monkeypatch.setattr(trainer, "tuned_recipe", search)
    folder = lab.new()
    header = atomic_files.read_json(folder.header, RunHeader)
    spec = msgspec.structs.replace(header.spec, tuning=TuneRequest(mode="full"))
    task = trainer.TrainTask(folder, spec, Change(), StopRequest())
    with pytest.raises(FlatoutError) as caught:
        train_in(task, lambda: plain(metrics=accuracy, best="acc"))
    assert caught.value.rule == "unknown-metric"


def test_nothing_is_checked_without_validation_data(lab: Lab, plain: Plain) -> None:
    assert lab.run(plain(validation_data=None, metrics=with_a_typo)).weights.exists()


class Counting(nn.Module):
    """Counts its passes, and makes a buffer in the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.calls, self.seen = 0, []
        self.register_buffer("late", None)

    def forward(self, batch: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        if self.late is None:
            self.late = torch.ones(2)
        self.last = batch.detach()
        return self.linear(batch)


def test_what_a_model_counts_is_put_back() -> None:
    model = Counting()
    with restore(model):
        model(torch.zeros(2, 4))
        model.linear.weight.requires_grad_(False)
    assert (model.calls, model.seen, model.late) == (0, [], None)
    assert not hasattr(model, "last") and model.linear.weight.requires_grad
    norm = nn.BatchNorm1d(4)
    before = norm.running_mean
    with restore(norm):
        norm(torch.randn(8, 4) + 3)
    assert norm.running_mean is before and not before.any() and norm.num_batches_tracked == 0
