"""Trainings in which memory runs out end as those that took less of it from there on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from oom import flatout_trials
from oom_runs import Trials, quiet_state
from support.oom_injection import SAID
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.errors import RunFailed
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.run_lines import Progress, RecipeSet, Started
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
# Of the operations, to be quick: the benchmark takes each.
EVERY = {"plain": 31, "batchnorm": 61, "dropout": 53, "accumulation": 67}


@pytest.mark.parametrize("name", EVERY)
def test_operation_that_fails_leaves_no_trace(name: str, tmp_path: Path) -> None:
    with quiet_state(tmp_path):
        made = list(flatout_trials(Trials(tmp_path / "runs"), name, EVERY[name]))
    assert {one.operation: one.problem for one in made if one.problem} == {}
    assert len(made) > 5
    assert {one.adaptation.kind for one in made if one.adaptation is not None} == {
        "recomputed" if name == "batchnorm" else "smaller"
    }


def short(experiment: Experiment, calls: set[int], *, backward: bool = False) -> Experiment:
    """The same experiment, for which memory is short in these calls of its loss in training."""
    num_calls = 0

    def loss(model: nn.Module, batch: Any) -> Any:
        nonlocal num_calls
        if next(model.parameters()).dtype == torch.float64:
            # Whether parts of a batch compute the same is asked in fp64, apart from the training.
            return experiment.loss(model, batch)  # type: ignore[misc]
        num_calls += model.training
        # What has been moved and drawn by then is to be put back.
        value = experiment.loss(model, batch)  # type: ignore[misc]
        if model.training and num_calls in calls:
            if not backward:
                raise RuntimeError(SAID)
            value.register_hook(_refused)
        return value

    return dataclasses.replace(experiment, loss=loss)


def _refused(gradient: Tensor) -> Tensor:
    raise RuntimeError(SAID)


def without_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def with_expanded_buffer() -> nn.Module:
    model = without_norm()
    model.register_buffer("wide", torch.ones(1, 3).expand(4, 3))
    return model


def adaptations(folder: RunFolder) -> tuple[OomAdaptation, ...]:
    return read_run(folder).adaptations


def changed_after(lab: Lab, experiment: Experiment, step: int, **use: Any) -> RunFolder:
    """A run that a person has stopped after that step, and resumed with these fields."""
    folder = lab.new()
    if step:
        lab.go_on(folder, experiment, stop_after=step)
    lab.go_on(folder, experiment, **use)
    return folder


class Points(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Samples that are drawn anew each time."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(6), index % 3


class Same(Points):
    """Samples that are the same each time."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((6,), float(index % 7)), index % 3


class Stream:
    """An iterable that draws, and knows where it is."""

    def __init__(self) -> None:
        self._next = 0

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while self._next < 30:
            self._next += 1
            yield torch.randn(6), self._next % 3
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


class Forgetful:
    """An iterable that gives the same again, and knows nothing."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for index in range(30):
            yield torch.randn(6), index % 3


def drawn_collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """A batch that is moved by a draw for all of it."""
    moved = random.random()
    return torch.stack([one for one, _ in samples]) + moved, torch.tensor([n for _, n in samples])


@pytest.mark.parametrize(
    ("data", "use", "collate"),
    [
        (Points, {"loader_workers": 0}, drawn_collate),
        (Points, {"loader_workers": 1}, None),
        (Same, {"data_path": "cached", "loader_workers": 0}, drawn_collate),
        (Stream, {}, drawn_collate),
        # With a `collate` that draws, a replay in other parts is no replay.
        (Forgetful, {}, None),
        (Forgetful, {"loader_workers": 1}, None),
    ],
    ids=["loader", "workers", "cached", "stream", "replayed", "replayed by workers"],
)
def test_batch_is_repeated_from_any_data(
    lab: Lab, tell: Tell, plain: Plain, data: Any, use: dict[str, Any], collate: Any
) -> None:
    lab.use |= use
    experiment = plain(
        model=without_norm, train_data=data, collate=collate, epochs=2,
        validation_data=lambda: _validation(),
    )  # fmt: skip
    whole = changed_after(lab, experiment, 2, micro_batch_size=4)
    folder = lab.run(short(experiment, {3}))
    [one] = adaptations(folder)
    # What workers have read of an iterable cannot be asked for again.
    assert one.is_in_place is not (data is Forgetful and "loader_workers" in use)
    assert tell.traces(folder) == tell.traces(whole)


def _validation() -> tuple[Tensor, Tensor]:
    return torch.ones(10, 6), torch.arange(10) % 3


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("step", [1, 5])
def test_batchnorm_and_generators_are_put_back(
    lab: Lab, tell: Tell, plain: Plain, step: int, backward: bool
) -> None:
    lab.use["out_of_memory"] = "shrink"
    whole = changed_after(lab, plain(), step - 1, micro_batch_size=4)
    folder = lab.run(short(plain(), {step}, backward=backward))
    [one] = adaptations(folder)
    assert (one.part, one.step, one.before, one.after, one.is_in_place) == (
        "backward" if backward else "forward", step, 8, 4, True,
    )  # fmt: skip
    assert tell.traces(folder) == tell.traces(whole)


@pytest.mark.parametrize("step", [1, 3])
def test_expanded_buffer_is_put_back(lab: Lab, tell: Tell, plain: Plain, step: int) -> None:
    experiment = plain(model=with_expanded_buffer)
    whole = changed_after(lab, experiment, step - 1, micro_batch_size=4)
    folder = lab.run(short(experiment, {step}))
    [one] = adaptations(folder)
    assert one.is_in_place and tell.traces(folder) == tell.traces(whole)


class Counting(nn.Module):
    """Counts its passes, in several plain attributes, one of which comes late."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = without_norm()
        self.count = self.num_evaluations = 0
        self.seen: dict[str, list[int]] = {"sizes": []}
        self.mean, self.total = torch.zeros(()), torch.zeros(3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layers(inputs)
        self.num_evaluations += not self.training
        if self.training:
            self.count += 1
            self.seen["sizes"].append(len(inputs))
            self.mean = 0.9 * self.mean + scores.detach().mean()
            self.total += scores.detach().sum(dim=0)
            self.kept = scores
            self.newest = float(self.mean)
        return scores


# A validation, before the tenth step, moves one that no step moves.
@pytest.mark.parametrize("step", [1, 2, 5, 10])
def test_plain_attributes_are_put_back(lab: Lab, tell: Tell, plain: Plain, step: int) -> None:
    experiment = plain(model=Counting)
    whole = changed_after(lab, experiment, step - 1, micro_batch_size=4)
    folder = lab.run(short(experiment, {step}))
    [one] = adaptations(folder)
    assert one.is_in_place and tell.traces(folder) == tell.traces(whole)


def test_run_goes_back_when_an_attribute_moves_for_the_first_time(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def late(model: Any, batch: Any) -> Tensor:
        if model.count == 5:
            model.is_late = True
        return plain().loss(model, batch)  # type: ignore[misc]

    experiment = plain(model=Counting, loss=late)
    folder = lab.new(checkpoint_every=3)
    lab.go_on(folder, short(experiment, {6}))
    [one] = adaptations(folder)
    assert (one.step, one.is_in_place) == (6, False)
    whole = changed_after(lab, experiment, 5, micro_batch_size=4)
    assert tell.traces(folder) == tell.traces(whole)


class Tracing(nn.Module):
    """Sums up its scores in a tensor that is not copied for every batch."""

    def __init__(self, *, is_in_place: bool) -> None:
        super().__init__()
        self.layers, self._is_in_place = without_norm(), is_in_place
        self.trace = torch.zeros(2**19)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layers(inputs)
        if self.training and self._is_in_place:
            self.trace += scores.detach().mean()
        elif self.training:
            self.trace = self.trace + scores.detach().mean()
        return scores


@pytest.mark.parametrize("step", [1, 6])
@pytest.mark.parametrize("is_in_place", [True, False], ids=["in place", "replaced"])
def test_run_goes_back_when_a_large_attribute_was_changed(
    lab: Lab, tell: Tell, plain: Plain, is_in_place: bool, step: int
) -> None:
    experiment = plain(model=lambda: Tracing(is_in_place=is_in_place))
    whole = changed_after(lab, experiment, step - 1, micro_batch_size=4)
    folder = lab.run(short(experiment, {step}), checkpoint_every=3)
    [one] = adaptations(folder)
    assert (one.step, one.is_in_place) == (step, False)
    assert tell.traces(folder) == tell.traces(whole)


def test_state_that_each_pass_takes_from_the_one_before_is_put_back(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = without_norm()
            self.hidden = torch.zeros(3)

        def forward(self, inputs: Tensor) -> Tensor:
            scores: Tensor = self.layers(inputs)
            if self.training:
                # With its graph, as truncated backpropagation through time leaves it.
                self.hidden = 0.5 * self.hidden.detach() + scores.mean(dim=0)
                self.sum = float(self.hidden.detach().sum())
            return scores

    experiment = plain(model=Stateful)
    whole = changed_after(lab, experiment, 4, micro_batch_size=4)
    folder = lab.run(short(experiment, {5}))
    [one] = adaptations(folder)
    assert one.is_in_place and tell.traces(folder) == tell.traces(whole)


def test_attributes_that_a_hook_changes_after_each_step_are_put_back(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    class Count:
        def on_step(self, context: Any) -> None:
            context.model.temperature = context.step

    experiment = plain(model=Counting, hooks=Count)
    whole = changed_after(lab, experiment, 4, micro_batch_size=4)
    folder = lab.run(short(experiment, {5}))
    [one] = adaptations(folder)
    assert one.is_in_place and tell.traces(folder) == tell.traces(whole)


def test_memory_that_runs_out_again_halves_again(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(model=without_norm)
    whole = changed_after(lab, experiment, 3, micro_batch_size=2)
    # The fourth update, whole; and its second half, in halves.
    folder = lab.run(short(experiment, {4, 6}))
    assert [one.after for one in adaptations(folder)] == [4, 2]
    assert tell.traces(folder) == tell.traces(whole)


def test_resume_goes_on_with_less(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(model=without_norm)
    whole = changed_after(lab, experiment, 3, micro_batch_size=4)
    folder = lab.new(checkpoint_every=2)
    lab.crash(folder, short(experiment, {4}), after=9)
    # From a checkpoint after it.
    lab.crash(folder, experiment, after=3)
    lab.go_on(folder, experiment)
    assert tell.traces(folder)["weights"] == tell.traces(whole)["weights"]
    assert read_run(folder).recipe.micro_batch_size.value == 4  # type: ignore[union-attr]


def test_first_update_of_an_epoch_is_repeated_after_a_checkpoint(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    experiment = plain(model=without_norm, epochs=1)
    whole = lab.new()
    lab.go_on(whole, experiment)
    lab.go_on(whole, experiment, epochs=3, micro_batch_size=4)
    folder = lab.new()
    # Seven updates an epoch; killed before another checkpoint is due.
    lab.crash(folder, short(plain(model=without_norm), {8}), after=11)
    assert adaptations(folder)[0].step == 8
    lab.go_on(folder, plain(model=without_norm))
    assert tell.traces(folder) == tell.traces(whole)


def failing_optimizer(failing: set[int]) -> Callable[[Any], torch.optim.Optimizer]:
    """Its update has changed some weights when memory runs out."""
    calls = 0

    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            nonlocal calls
            calls += 1
            if calls in failing:
                with torch.no_grad():
                    self.param_groups[0]["params"][0].add_(1.0)
                raise RuntimeError(SAID)
            return super().step(closure)

    return lambda parameters: Broken(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("call", [1, 6])
def test_run_goes_back_when_the_optimizer_has_begun(
    lab: Lab, tell: Tell, plain: Plain, call: int
) -> None:
    lab.use |= {"checkpoint_every": 4, "optimizer_implementation": "own"}
    fields = {"model": without_norm, "ema": 0.9}
    whole = changed_after(
        lab, plain(**fields, optimizer=failing_optimizer(set())), call - 1, micro_batch_size=4
    )
    folder = lab.run(plain(**fields, optimizer=failing_optimizer({call})))
    [one] = adaptations(folder)
    assert (one.part, one.step, one.is_in_place) == ("optimizer", call, False)
    starts = [(line.step, line.resumed) for line in tell.events(folder, Started)]
    assert starts == [(0, False), (0, False) if call == 1 else (4, True)]
    assert tell.traces(folder) == tell.traces(whole)
    steps = [line.step for line in tell.metrics(folder, Progress)]
    assert steps == sorted(steps)


def test_batchnorm_stops_with_advice(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new(checkpoint_every=100)
    with pytest.raises(RunFailed) as caught:
        lab.go_on(folder, short(plain(), {5}))
    assert caught.value.rule == "out-of-memory"
    assert "BatchNorm" in caught.value.problem and "--on-oom shrink" in caught.value.fix
    # What was trained is saved, and a resume loses nothing of it.
    assert tell.state(folder)["position"]["step"] == 4
    lab.go_on(folder, plain(), out_of_memory="shrink")
    assert tell.traces(folder)["weights"] == tell.traces(lab.run(plain()))["weights"]


def test_want_of_memory_ends_the_run_where_that_is_wanted(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.new(out_of_memory="stop")
    with pytest.raises(RunFailed):
        lab.go_on(folder, short(plain(model=without_norm), {5}))
    assert adaptations(folder) == () and tell.failure(folder).rule == "out-of-memory"


def test_one_sample_that_is_too_large_is_reported(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    with pytest.raises(RunFailed) as caught:
        lab.go_on(folder, short(plain(model=without_norm), set(range(2, 99))))
    assert "a single sample" in caught.value.problem
    assert [one.after for one in adaptations(folder)] == [4, 2, 1]


def own_step(updates: Any, model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    loss: Tensor = updates["optimizer"](nn.functional.cross_entropy(model(inputs), labels))
    return loss


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.linear(hidden).relu()


def in_blocks() -> nn.Module:
    blocks = nn.Sequential(Block(), Block())
    return nn.Sequential(nn.Linear(6, 16), blocks, nn.Dropout(0.3), nn.Linear(16, 3))


def test_own_step_computes_activations_again(lab: Lab, tell: Tell, plain: Plain) -> None:
    calls = 0

    def step(updates: Any, model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        loss = own_step(updates, model, batch)
        if calls == 5:
            # Its update is made already: there is no way back but that to the checkpoint.
            raise RuntimeError(SAID)
        return loss

    fields = {"model": in_blocks, "loss": None, "validation_data": None}
    lab.use["checkpoint_every"] = 3
    whole = lab.run(plain(**fields, step=own_step))
    folder = lab.run(plain(**fields, step=step))
    [one] = adaptations(folder)
    assert (one.kind, one.is_in_place) == ("recomputed", False)
    assert tell.traces(folder) == tell.traces(whole)
    assert len(tell.events(folder, RecipeSet)) == 2


def test_larger_micro_batches_are_tried_again(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(model=without_norm, epochs=None, steps=1_030, validation_data=None)
    folder = lab.new(checkpoint_every=1_000)
    lab.crash(folder, short(experiment, {3}), after=1_875)
    small, large = adaptations(folder)
    assert (small.kind, small.step, large.kind, large.step) == ("smaller", 3, "larger", 1_003)
    # The checkpoint is from before it grew, and the history says when it did.
    lab.go_on(folder, experiment)
    recipes = [line.recipe.micro_batch_size.value for line in tell.events(folder, RecipeSet)]
    assert recipes == [8, 4, 8]
    never = lab.new(checkpoint_every=1_000)
    lab.go_on(never, short(experiment, {3}))
    assert tell.traces(folder) == tell.traces(never)


def test_validation_is_made_again_from_less(lab: Lab, tell: Tell, plain: Plain) -> None:
    calls = 0

    def metrics(model: nn.Module, batch: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError(SAID)
        return {"loss": experiment.loss(model, batch)}  # type: ignore[misc]

    experiment = plain(model=without_norm, ema=0.9)
    whole = changed_after(lab, experiment, 7, micro_batch_size=4)
    folder = lab.run(dataclasses.replace(experiment, metrics=metrics))
    [one] = adaptations(folder)
    assert (one.part, one.step, one.is_in_place) == ("validation", 8, True)
    assert tell.traces(folder) == tell.traces(whole)


def test_samples_are_left_out_where_memory_is_short_for_them(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def generate(model: nn.Module) -> list[str]:
        raise MemoryError

    folder = lab.run(plain(generate=generate))
    reported = [one for one in tell.findings(folder) if one.rule == "samples-left-out"]
    assert len(reported) == 1
    assert tell.traces(folder) == tell.traces(lab.run(plain()))


def test_worker_after_a_kill_takes_less(lab: Lab, tell: Tell, plain: Plain) -> None:
    from flatout.engine.runtime.stop_signals import StopRequest
    from flatout.engine.training.api import train_in
    from flatout.engine.training.trainer import TrainTask
    from flatout.schema.change import Change

    experiment = plain(model=without_norm)
    whole = changed_after(lab, experiment, 4, micro_batch_size=4)
    folder = lab.new(checkpoint_every=4)
    lab.crash(folder, experiment, after=6)
    task = TrainTask(
        folder, read_run(folder).header.spec, Change(is_after_kill=True), StopRequest()
    )
    train_in(task, lambda: experiment)
    [one] = adaptations(folder)
    assert (one.part, one.step, one.after) == ("process", 5, 4)
    assert tell.traces(folder) == tell.traces(whole)


def contrasted(model: nn.Module, batch: Any) -> Tensor:
    """Each sample is compared with all others of its batch, as in CLIP and SimCLR."""
    scores = nn.functional.normalize(model(batch[0]), dim=1)
    again = nn.functional.normalize(model(batch[0] + 0.1), dim=1)
    return nn.functional.cross_entropy(scores @ again.T / 0.1, torch.arange(len(scores)))


def root_mean(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """A metric whose mean over batches depends on their size."""
    return {"rmse": (model(batch[0]) - 3 * batch[0][:, :1]).square().mean().sqrt()}


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"loss": contrasted}, "the loss would change"), ({"metrics": root_mean}, "`rmse`")],
    ids=["loss", "metric"],
)
def test_batch_whose_parts_compute_something_else_is_not_split(
    lab: Lab, plain: Plain, fields: dict[str, Any], said: str
) -> None:
    experiment = plain(model=without_norm, **fields)
    folder = lab.new()
    with pytest.raises(RunFailed, match="no way to use less") as caught:
        lab.go_on(folder, short(experiment, {5}))
    assert said in caught.value.problem and "--on-oom shrink" in str(caught.value.fix)
    assert adaptations(folder) == ()
    # As the fix says.
    lab.go_on(folder, short(experiment, {5}), out_of_memory="shrink")
    assert [one.kind for one in adaptations(folder)] == ["smaller"]


def blocks() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh())] * 1,
        nn.Sequential(nn.Linear(16, 16), nn.Tanh())), nn.Linear(16, 3),
    )  # fmt: skip


def test_verdict_on_parts_of_a_batch_is_kept_for_a_resume(lab: Lab, plain: Plain) -> None:
    experiment = plain(model=blocks, loss=contrasted)
    folder = lab.new()
    lab.go_on(folder, short(experiment, {5}), stop_after=8)
    [adaptation] = adaptations(folder)
    assert adaptation.kind == "recomputed"
    assert "the loss would change" in str(adaptation.not_split)
    # What a resume reads, it does not ask again: there is no way left.
    with pytest.raises(RunFailed, match="the loss would change"):
        lab.go_on(folder, short(experiment, {5}))
