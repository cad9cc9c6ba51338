"""A run that was interrupted gives, bit for bit, what it gives when it is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedules

from flatout.engine import Experiment
from flatout.errors import FlatoutError
from flatout.schema.run_lines import EpochEnded, Finished, Started, Stopped, Validated
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
Parameters = Any

# 50 samples in batches of 8: 7 updates an epoch, the last one with 2 samples; 3 epochs.
STOPS = (1, 7, 10, 16)


class Augmented(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Each sample draws from the generators of all three libraries."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return augmented(index), index % 3


def augmented(index: int) -> Tensor:
    noise = torch.randn(6) + random.random() + float(np.random.normal())
    return noise + torch.nn.functional.one_hot(torch.tensor(index % 3), 6)


class Counted:
    """An iterable that knows where it is, and goes on from there."""

    def __init__(self) -> None:
        self.epoch = 0
        self.done = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while self.done < 50:
            self.done += 1
            index = (self.done * 7 + self.epoch) % 50
            yield augmented(index), index % 3
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class Replayed:
    """An iterable without a state that gives the same again."""

    def __len__(self) -> int:
        return 50

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for index in np.random.permutation(50).tolist():
            yield augmented(index), index % 3


class Tied(nn.Module):
    """Output weights that are the input's, a buffer that no state_dict holds, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6, bias=False)
        self.outer = nn.Linear(6, 6, bias=False)
        self.outer.weight = self.inner.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 3)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(inputs.mean(dim=0), 0.1)
        hidden = self.outer(torch.tanh(self.inner(inputs - self.mean)))
        scores: Tensor = self.head(hidden + self.frozen(inputs))
        return scores


def grouped(named: Parameters) -> torch.optim.Optimizer:
    named = list(named)
    return torch.optim.AdamW(
        [
            {"params": [p for name, p in named if name.endswith("weight")], "weight_decay": 0.1},
            {"params": [p for name, p in named if name.endswith("bias")], "lr": 0.02},
        ],
        lr=0.01,
        amsgrad=True,
    )


def sgd(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)


def sums(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = batch
    losses = nn.functional.cross_entropy(model(inputs), labels, reduction="none")
    return (losses * (labels + 1)).sum(), (labels + 1).sum()


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return schedules.OneCycleLR(optimizer, max_lr=0.05, total_steps=22)


def warmed_up(optimizer: torch.optim.Optimizer) -> Any:
    first = schedules.LinearLR(optimizer, total_iters=4)
    return schedules.SequentialLR(
        optimizer, [first, schedules.CosineAnnealingLR(optimizer, 10)], milestones=[4]
    )


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "samples without workers": {"train_data": Augmented, "use": {"loader_workers": 0}},
    "samples with 2 workers": {
        "train_data": Augmented, "use": {"loader_workers": 2}, "stops": (9,),
    },
    "samples accumulated": {
        "train_data": Augmented, "use": {"loader_workers": 0, "micro_batch_size": 3},
    },
    "stream with a state": {"train_data": Counted},
    "stream with a state, accumulated": {"train_data": Counted, "use": {"micro_batch_size": 3}},
    "stream replayed": {"train_data": Replayed},
    "stream replayed by 2 workers": {
        "train_data": Replayed, "use": {"loader_workers": 2}, "stops": (9,),
    },
    "step schedule": {"schedule": lambda o: schedules.StepLR(o, 1, gamma=0.3)},
    "many steps": {
        "schedule": lambda o: schedules.MultiStepLR(o, [3, 3, 9]), "schedule_every": "step",
    },
    "one cycle": {"schedule": one_cycle, "schedule_every": "step"},
    "one cycle with momentum": {
        "schedule": one_cycle, "schedule_every": "step", "optimizer": sgd,
    },
    "plateau": {"schedule": lambda o: schedules.ReduceLROnPlateau(o, patience=0, threshold=9.0)},
    "plateau between validations": {
        "schedule": lambda o: schedules.ReduceLROnPlateau(o, patience=0, threshold=9.0),
        "validate_every": 5,
    },
    "own function": {
        "schedule": lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
        "schedule_every": "step",
    },
    "cosine": {"schedule": lambda o: schedules.CosineAnnealingLR(o, 3)},
    "sequence": {"schedule": warmed_up, "schedule_every": "step"},
    "moving average": {"ema": 0.9, "clip_norm": 0.5},
    "accumulated": {"use": {"micro_batch_size": 3}},
    "sums accumulated": {"loss": sums, "use": {"micro_batch_size": 3}, "clip_norm": 0.5},
    "groups": {"optimizer": grouped, "named_parameters": True},
    "momentum": {"optimizer": sgd},
    "momentum, own": {"optimizer": sgd, "use": {"optimizer_implementation": "own"}},
    "adam foreach": {
        "optimizer": lambda p: torch.optim.Adam(p, amsgrad=True),
        "use": {"optimizer_implementation": "foreach"},
    },
    "adagrad": {"optimizer": lambda p: torch.optim.Adagrad(p, lr=0.1)},
    "adadelta": {"optimizer": torch.optim.Adadelta},
    "rmsprop": {"optimizer": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True)},
    "ties and buffers": {"model": Tied, "ema": 0.9},
    "bf16": {"use": {"precision": "bf16"}},
    "validated every 3 steps": {"validate_every": 3},
    "early stop": {"validate_every": 2, "early_stop": 2, "epochs": 40, "stops": (1, 7)},
    "steps": {"epochs": None, "steps": 17},
    "no validation": {"validation_data": None},
    "not shuffled": {"shuffle": False},
}  # fmt: skip


def case(plain: Plain, name: str) -> tuple[Experiment, dict[str, Any], tuple[int, ...]]:
    fields = dict(CASES[name])
    use, stops = fields.pop("use", {}), fields.pop("stops", STOPS)
    return plain(**fields), use, stops


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_is_identical(lab: Lab, tell: Tell, plain: Plain, name: str) -> None:
    experiment, use, stops = case(plain, name)
    whole = lab.run(experiment, **use)
    parts = lab.new(**use)
    micro_batches = -(-8 // use.get("micro_batch_size", 8))
    done = 0
    for stop in stops:
        lab.go_on(parts, experiment, stop_after=(stop - done - 1) * micro_batches + 1)
        done = tell.state(parts)["position"]["step"]
        assert tell.events(parts)[-1].reason == "test"
    lab.go_on(parts, experiment)
    assert len(tell.events(parts, Stopped)) == len(stops)
    assert isinstance(tell.events(parts)[-1], Finished)
    assert tell.traces(parts) == tell.traces(whole)


@pytest.mark.parametrize("name", ["as it is", "samples with 2 workers", "stream with a state"])
def test_resumed_copy_is_identical_when_taken_in_the_middle(
    lab: Lab, tell: Tell, plain: Plain, tmp_path: Path, name: str
) -> None:
    experiment, use, _ = case(plain, name)
    whole = lab.new(checkpoint_every=2, **use)
    # In the 12th step: while the checkpoint of the 10th may still be on its way to the disk.
    copy = lab.copied_at(whole, experiment, after=12, to=tmp_path / "copy")
    assert read_run(copy).status == "interrupted"
    assert copy.checkpoint_steps()[-1] in (8, 10)
    lab.go_on(copy, experiment)
    assert tell.traces(copy) == tell.traces(whole)
    assert tell.events(copy, Started)[-1].resumed


def test_resumed_run_is_identical_when_it_crashed(lab: Lab, tell: Tell, plain: Plain) -> None:
    whole = lab.run(plain(), checkpoint_every=5)
    parts = lab.new(checkpoint_every=5)
    for after in (3, 9, 7):
        lab.crash(parts, plain(), after)
    lab.go_on(parts, plain())
    assert tell.traces(parts) == tell.traces(whole)
    starts = tell.events(parts, Started)
    assert [line.step for line in starts] == [0, 0, 5, 10]


def mixed(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A batch in which each sample is mixed with another, by chance."""
    inputs = torch.stack([one for one, _ in samples])
    share = random.random() * float(np.random.uniform())
    labels = torch.tensor([label for _, label in samples])
    return inputs.lerp(inputs[torch.randperm(len(inputs))], share), labels


def test_number_of_workers_does_not_change_the_weights(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(train_data=Augmented, collate=mixed, epochs=2)
    runs = [lab.run(experiment, loader_workers=number) for number in (0, 1, 2)]
    first, *others = map(tell.traces, runs)
    assert all(one == first for one in others)


class Unreadable(RuntimeError):
    """A sample could not be read."""


class Interrupted(Augmented):
    """Cannot give its so-many-th sample, once."""

    def __init__(self, at: list[int]) -> None:
        self.at = at
        self.given = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sample = super().__getitem__(index)
        self.given += 1
        if self.at and self.given == self.at[0]:
            self.at.pop()
            raise Unreadable
        return sample


class InterruptedStream(Counted):
    def __init__(self, at: list[int]) -> None:
        super().__init__()
        self.at = at
        self.given = 0

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for sample in super().__iter__():
            self.given += 1
            if self.at and self.given == self.at[0]:
                self.at.pop()
                raise Unreadable
            yield sample


@pytest.mark.parametrize("kind", [Interrupted, InterruptedStream])
def test_resumed_run_is_identical_when_a_sample_could_not_be_read(
    lab: Lab, tell: Tell, plain: Plain, kind: Any
) -> None:
    whole = lab.run(plain(train_data=lambda: kind([])), loader_workers=0, micro_batch_size=3)
    # After 10 updates: 50 samples in the first epoch, and three batches of 8.
    at = [50 + 3 * 8 + 5]
    parts = lab.new(loader_workers=0, micro_batch_size=3)
    with pytest.raises(FlatoutError):
        lab.go_on(parts, plain(train_data=lambda: kind(at)))
    # What was trained is saved if it can be gone on with exactly; else the run begins again.
    assert parts.checkpoint_steps() == ([] if kind is InterruptedStream else [10])
    lab.go_on(parts, plain(train_data=lambda: kind(at)))
    assert tell.traces(parts) == tell.traces(whole)


def test_run_stops_by_its_file_and_goes_on(lab: Lab, tell: Tell, plain: Plain) -> None:
    whole = lab.run(plain(epochs=60))
    parts = lab.new()
    lab.go_on(parts, slowly(plain(epochs=60), parts))
    assert tell.events(parts)[-1].reason == "asked to stop" and not parts.stop.exists()
    lab.go_on(parts, plain(epochs=60))
    assert tell.traces(parts) == tell.traces(whole)


def slowly(experiment: Experiment, folder: RunFolder) -> Experiment:
    """Asks for the stop in the third step, and leaves time to see it."""
    import dataclasses
    import time

    calls = 0

    def loss(model: nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            folder.request_stop()
            time.sleep(0.4)
        return experiment.loss(model, batch)

    return dataclasses.replace(experiment, loss=loss)


def test_samples_differ_from_epoch_to_epoch(lab: Lab, plain: Plain) -> None:
    seen: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch[0])
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    fields = {"loss": loss, "validation_data": None, "shuffle": False, "epochs": 2}
    for data in (Augmented, Replayed):
        seen.clear()
        lab.run(plain(train_data=data, **fields), loader_workers=0)
        assert len(seen) == 14 and not torch.equal(seen[0], seen[7])


def test_stream_is_reported_its_epochs(lab: Lab, plain: Plain) -> None:
    reported: list[int] = []

    class Listening(Counted):
        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch)
            reported.append(epoch)

    experiment = plain(train_data=Listening)
    folder = lab.new()
    lab.go_on(folder, experiment, stop_after=10)
    lab.go_on(folder, experiment)
    assert reported == [0, 1, 1, 2]


def test_seed_decides(lab: Lab, tell: Tell, plain: Plain) -> None:
    one, same, other = (tell.traces(lab.run(plain(), seed=seed)) for seed in (3, 3, 4))
    assert one == same
    assert one["weights"] != other["weights"]


def test_metrics_are_cut_back_when_resumed(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new(checkpoint_every=5)
    # The first epoch's end, at step 7, came after the checkpoint of step 5.
    lab.crash(folder, plain(), 9)
    assert [line.epoch for line in tell.metrics(folder, EpochEnded)] == [0]
    lab.go_on(folder, plain())
    assert [line.epoch for line in tell.metrics(folder, Validated)] == [0, 1, 2]
    steps = [line.step for line in tell.metrics(folder)]
    assert steps == sorted(steps)


def test_replayed_stream_is_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    assert "iterable-is-replayed" in tell.rules(lab.run(plain(train_data=Replayed, epochs=1)))
    assert "iterable-is-replayed" not in tell.rules(lab.run(plain(train_data=Counted, epochs=1)))
