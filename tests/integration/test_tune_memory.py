"""The search where memory is short: what the plain loop becomes, and what loses."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flatout.engine
from flatout.engine.session.session import build
from flatout.engine.tuner.baseline_loop import BaselineLoop
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.trials import Trials
from flatout.errors import RunFailed
from flatout.schema.tuning import Candidate, Trial
from flatout.tune.memory import larger_parts

WIDTH = 64
NUM_SAMPLES = 200


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, WIDTH, generator=generator)
    return inputs, torch.randint(10, (NUM_SAMPLES,), generator=generator)


class Rows(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.inputs, self.targets = rows()

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


class Stream(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(*rows(), strict=True))


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def counted_loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Only some of the samples count, as tokens that are not padding."""
    inputs, targets = batch
    is_counted = targets < 4
    losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    return (losses * is_counted).sum(), is_counted.sum()


def mean_of_counted_loss(model: nn.Module, batch: Any) -> Tensor:
    total, count = counted_loss(model, batch)
    return total / count.clamp(min=1)


def short_of_memory(loss: Any, most_samples: int) -> Any:
    """The loss on a machine whose memory holds so many samples."""

    def bounded(model: nn.Module, batch: Any) -> Any:
        if len(batch[0]) > most_samples:
            raise torch.OutOfMemoryError(f"{len(batch[0])} samples do not fit")
        return loss(model, batch)

    return bounded


def layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *between, nn.Linear(WIDTH, 10))


def experiment(**changes: Any) -> flatout.Experiment:
    fields: dict[str, Any] = {
        "model": lambda: layers(nn.ReLU()),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "loss": mean_loss,
        "train_data": rows,
        "batch_size": 50,
        "epochs": 1,
    }
    return flatout.Experiment(**(fields | changes))


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))


@pytest.mark.parametrize("loss", [mean_loss, counted_loss])
@pytest.mark.parametrize("data", [rows, Rows, Stream])
def test_parts_of_a_batch_make_the_same_update(data: Any, loss: Any) -> None:
    """Also where they do not divide it, and in the epoch's last batch."""
    reported = experiment(train_data=data, loss=loss, shuffle=data is not Stream, batch_size=48)
    weights = []
    for size in (None, 13):
        built = build(reported, 0, "cpu")
        loop = BaselineLoop(built, size)
        assert [loop.run(4), loop.run(1), loop.run(1)] == [192, 8, 48]
        weights.append([parameter.detach() for parameter in built.model.parameters()])
    for whole, parts in zip(*weights, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_the_plain_loop_accumulates_where_the_batch_does_not_fit() -> None:
    bounded = experiment(loss=short_of_memory(mean_loss, 16))
    found = flatout.engine.tune(bounded, budget_s=2, is_quiet=True)
    assert found.decision.rungs[0].name == "plain loop, 4 micro-batches"
    assert found.decision.rungs[0].changes == {"micro_batch_size": 13}
    micro = found.recipe.micro_batch_size
    assert micro.value == 13 and "does not fit into memory" in micro.why
    assert all(
        rung.changes.get("micro_batch_size", 13) <= 13 for rung in found.decision.rungs
    )  # fmt: skip
    again = flatout.engine.tune(bounded, budget_s=2, is_quiet=True)
    assert again.decision.rungs[0].changes == {"micro_batch_size": 13}


def contrasted(model: nn.Module, batch: Any) -> Tensor:
    """Each sample is compared with all others of its batch, as in CLIP and SimCLR."""
    scores = nn.functional.normalize(model(batch[0]), dim=1)
    again = nn.functional.normalize(model(batch[0] + 0.1), dim=1)
    return nn.functional.cross_entropy(scores @ again.T / 0.1, torch.arange(len(scores)))


def root_mean(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """A metric whose mean over batches depends on their size."""
    return {"rmse": model(batch[0]).square().mean().sqrt()}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loss": contrasted}, "it does not compute the same"),
        ({"metrics": root_mean, "best": "rmse"}, "the validation's `rmse` would change"),
    ],
    ids=["loss", "metric"],
)
def test_parts_that_compute_something_else_are_not_taken(fields: dict[str, Any], said: str) -> None:
    reported = experiment(**{"loss": mean_loss, "validation_data": rows, **fields})
    bounded = dataclasses.replace(reported, loss=short_of_memory(reported.loss, 16))
    trials = Trials(TuningTask(experiment=bounded))
    with pytest.raises(RunFailed) as caught:
        trials.plain_step()
    assert caught.value.rule == "out-of-memory" and said in str(caught.value.because)


def test_batch_norm_is_not_shown_parts_of_a_batch() -> None:
    """Its activations are computed again instead, where that can be."""

    def loss(model: Any, batch: Any) -> Tensor:
        # Two of its three blocks must keep less.
        if len(batch[0]) > 10 and "forward" not in vars(model[3][1]):
            raise torch.OutOfMemoryError("too many activations")
        return mean_loss(model, batch)

    def model() -> nn.Module:
        blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3))
        return layers(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Sequential(*blocks))

    trials = Trials(TuningTask(experiment=experiment(model=model, loss=loss)))
    trials.plain_step()
    assert trials.builder.setting.baseline == {"activation_checkpointing": 0.5}
    assert trials.builder.plain_recipe().activation_checkpointing.value == 0.5


def test_larger_parts_are_won_where_blocks_are_computed_again() -> None:
    """What memory is short for loses, and fewer blocks come first."""

    def loss(model: Any, batch: Any) -> Tensor:
        num_again = sum("forward" in vars(block) for block in model[1])
        if len(batch[0]) > 13 * (1 + num_again):
            raise torch.OutOfMemoryError("too many activations")
        return mean_loss(model, batch)

    def model() -> nn.Module:
        blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3))
        return layers(nn.Sequential(*blocks))

    trials = Trials(TuningTask(experiment=experiment(model=model, loss=loss)))
    trials.plain_step()
    assert trials.builder.setting.baseline == {"micro_batch_size": 13}
    first, *_ = larger_parts(trials.builder.setting)
    base = {"micro_batch_size": 13}
    changes = {**base, **first.changes}
    trial = Trial(stage="screen", candidate=first, incumbent=base, changes=changes)
    result = trials.measured(trial, 0.3)
    assert result.problem is None and result.effect is not None
    assert "1 block recomputed" in result.effect
    assert trials.judged(changes).is_passed


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"model": lambda: layers(nn.BatchNorm1d(WIDTH))}, "BatchNorm"),
        ({"loss": short_of_memory(mean_of_counted_loss, 16)}, "compute the same"),
        ({"loss": short_of_memory(mean_loss, 0)}, "could not be checked"),
    ],
)
def test_nothing_is_changed_silently_where_memory_is_short(
    changes: dict[str, Any], because: str
) -> None:
    bounded = experiment(**({"loss": short_of_memory(mean_loss, 16)} | changes))
    with pytest.raises(RunFailed) as caught:
        flatout.engine.tune(bounded, budget_s=2, is_quiet=True)
    assert caught.value.rule == "out-of-memory"
    assert caught.value.because is not None and because in caught.value.because


def test_parts_that_were_asked_for_are_those_of_the_plain_loop() -> None:
    bounded = experiment(loss=short_of_memory(mean_loss, 16))
    trials = Trials(TuningTask(experiment=bounded, fixed={"micro_batch_size": 10}))
    trials.plain_step()
    assert trials.builder.setting.baseline == {}


def test_a_candidate_without_enough_memory_loses_with_the_reason() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[0]) < 50:
            raise RuntimeError("CUDA error: out of memory")
        return mean_loss(model, batch)

    trials = Trials(TuningTask(experiment=experiment(loss=loss, shuffle=False)))
    for changes, rule in (({"micro_batch_size": 25}, "out-of-memory"), ({}, None)):
        candidate = Candidate(name="tried", axis="micro-batch", changes=changes, why="")
        trial = Trial(stage="screen", candidate=candidate, incumbent={}, changes=changes)
        problem = trials.measured(trial, 0.1).problem
        assert (problem.rule if problem else None) == rule


CHILD = """
import json, resource, sys, torch
import flatout, flatout.engine
from flatout.engine.tuner.trials import Trials
from flatout.engine.tuner.candidate_builder import TuningTask

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
    def forward(self, inputs):
        return (inputs * self.weight).expand(-1, 1_000_000).exp().mean(1)

inputs = torch.zeros(256, 1)
experiment = flatout.Experiment(
    model=Wide,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    loss=lambda model, batch: model(batch[0]).mean(),
    train_data=lambda: (inputs, inputs), batch_size=256, epochs=1,
)
torch.set_num_threads(1)
trials = Trials(TuningTask(experiment=experiment))
# A batch of 256 takes 2 GB for its forward and backward pass; what is there now, and 1 GB.
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + 1_000_000_000
resource.setrlimit(resource.RLIMIT_AS, (room, room))
trials.plain_step()
print(json.dumps(trials.builder.setting.baseline))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_memory_that_is_really_short_is_found() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    size = json.loads(done.stdout)["micro_batch_size"]
    assert size in (32, 64)
