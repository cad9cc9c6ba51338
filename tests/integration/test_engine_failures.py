"""What goes wrong is told in one shape, and what was saved before is whole."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import flatout
from flatout.engine import Experiment
from flatout.engine.ranks.protocol import SingleRank
from flatout.engine.runtime.error_map import AT_WORK, is_out_of_memory
from flatout.engine.runtime.oom import RECORDING, WORKING
from flatout.engine.runtime.rng import sample_order
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.change import Change
from flatout.schema.run_lines import EpochEnded, Failed, Finished, RecipeSet
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]
CASES = Path(__file__).parents[1] / "cases" / "engine"


def rule_of(lab: Lab, experiment: Experiment, folder: RunFolder, **use: Any) -> str:
    """The rule of the bad news with which a training ends."""
    with pytest.raises(FlatoutError) as caught:
        lab.go_on(folder, experiment, **use)
    return caught.value.rule


def poisoned(samples: set[int], count: int = 50) -> Callable[[], tuple[Tensor, Tensor]]:
    """Points of which some are not a number."""

    def make() -> tuple[Tensor, Tensor]:
        dice = torch.Generator().manual_seed(1)
        inputs = torch.randn(count, 6, generator=dice)
        inputs[sorted(samples)] = float("nan")
        return inputs, torch.arange(count) % 3

    return make


# Losses that are no numbers.


# The order of the first epoch with seed 0: this sample is trained in the third update.
ORDER = sample_order(50, 0, 0, True).tolist()
BAD, UPDATE = ORDER[20], 2


def test_run_stops_and_names_the_samples_when_the_loss_is_nan(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.new(checkpoint_every=1)
    assert rule_of(lab, plain(train_data=poisoned({BAD})), folder) == "nonfinite-loss"
    kept = json.loads((folder.path / "nonfinite.json").read_text())
    assert kept == {"step": UPDATE + 1, "epoch": 0, "indices": ORDER[16:24]}
    finding = tell.failure(folder)
    assert f"step {UPDATE + 1} " in finding.problem and "nan" in finding.problem
    state = tell.state(folder)
    assert state["position"]["step"] == UPDATE
    assert all(value.isfinite().all() for value in state["model"].values())
    # Resumed, it comes to the same place; skipping the batch, it goes on to the end.
    assert rule_of(lab, plain(train_data=poisoned({BAD})), folder) == "nonfinite-loss"
    lab.go_on(folder, plain(train_data=poisoned({BAD})), nonfinite_loss="skip")
    assert read_run(folder).status == "finished"


def test_samples_are_named_when_the_loss_is_seen_late(lab: Lab, tell: Tell, plain: Plain) -> None:
    """Losses are read some steps later; also with micro-batches, and in a later epoch."""
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        inputs, labels = batch
        value = nn.functional.cross_entropy(model(inputs), labels)
        return value * float("inf") if calls == 3 * 8 + 2 else value

    experiment = plain(loss=loss, validation_data=None, train_data=poisoned(set(), 64))
    folder = lab.new(micro_batch_size=3)
    assert rule_of(lab, experiment, folder) == "nonfinite-loss"
    kept = json.loads((folder.path / "nonfinite.json").read_text())
    order = sample_order(64, 0, 1, True).tolist()
    assert kept == {"step": 9, "epoch": 1, "indices": order[:8]}


def test_weights_are_unchanged_by_a_skipped_batch(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(train_data=poisoned({BAD}), ema=0.9, epochs=1)
    folder = lab.new(nonfinite_loss="skip")
    lab.go_on(folder, experiment, stop_after=UPDATE)
    before = tell.state(folder)
    lab.go_on(folder, experiment, stop_after=1)
    after = tell.state(folder)
    assert after["position"]["step"] == before["position"]["step"] + 1 == UPDATE + 1
    for part in ("model", "average", "optimizer"):
        assert str(after[part]) == str(before[part]), part
    assert "nonfinite-loss" in tell.rules(folder)
    lab.go_on(folder, experiment)
    assert tell.metrics(folder, EpochEnded)[0].loss < 10
    assert read_run(folder).validations[0].metrics["loss"] is not None


def test_run_ends_when_every_batch_is_skipped(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(train_data=poisoned(set(range(50)))), nonfinite_loss="skip")
    assert isinstance(tell.events(folder)[-1], Finished)
    # Told ten times at most, not once a batch.
    reported = [one for one in tell.findings(folder) if one.rule == "nonfinite-loss"]
    assert len(reported) == 10


def steep(at: int) -> Any:
    """A loss whose gradient is NaN in its so-many-th call, although its value is a number."""
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += model.training
        inputs, labels = batch
        value = nn.functional.cross_entropy(model(inputs), labels)
        # Its value is 0, its gradient 0 * inf.
        return value + (value * 0).sqrt() if calls == at else value

    return loss


def test_last_checkpoint_is_finite_when_only_a_gradient_is_not(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.new(checkpoint_every=1)
    assert rule_of(lab, plain(loss=steep(5)), folder) == "nonfinite-weights"
    state = tell.state(folder)
    assert state["position"]["step"] == 4
    assert all(value.isfinite().all() for value in state["model"].values())


def test_batch_is_skipped_when_only_a_gradient_is_not_finite(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    folder = lab.run(plain(loss=steep(5)), nonfinite_loss="skip")
    assert all(value.isfinite().all() for value in tell.state(folder)["model"].values())
    reported = [one for one in tell.findings(folder) if one.rule == "nonfinite-loss"]
    assert len(reported) == 1 and "step 5 " in reported[0].problem


# Experiments that cannot be trained.


class OneSample(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Tensor:
        raise IndexError(index)


class NoSamples:
    def __iter__(self) -> Iterator[Tensor]:
        return iter(())


def made(value: Any) -> Callable[[], Any]:
    return lambda: value


def points(count: int = 50) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 6), torch.arange(count) % 3


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*points()))


def generator() -> Iterator[Tensor]:
    yield torch.zeros(6)


def detached(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]).detach()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "loss is a tensor": (
        {"loss": lambda model, batch: model(batch[0])}, "loss-is-not-a-scalar",
    ),
    "loss is a number": ({"loss": lambda model, batch: 3.0}, "loss-is-not-a-scalar"),
    "loss is nothing": ({"loss": lambda model, batch: None}, "loss-is-not-a-scalar"),
    "loss without gradient": ({"loss": detached}, "loss-is-not-a-scalar"),
    "metric is a tensor": (
        {"metrics": lambda model, batch: {"loss": model(batch[0])}}, "metric-is-not-a-scalar",
    ),
    "unknown best": ({"best": "acuracy"}, "unknown-metric"),
    "batch larger than the data": ({"batch_size": 64}, "batch-larger-than-data"),
    "no tensors": ({"train_data": lambda: points(0)}, "no-data"),
    "no samples": ({"train_data": OneSample}, "no-data"),
    "empty stream": ({"train_data": NoSamples}, "no-data"),
    "empty validation": ({"validation_data": lambda: points(0)}, "no-data"),
    "generator": ({"train_data": generator}, "data-can-be-read-only-once"),
    "loader": ({"train_data": loader}, "data-of-unknown-kind"),
    "number": ({"train_data": made(3)}, "data-of-unknown-kind"),
    "text": ({"train_data": made("x.csv")}, "data-of-unknown-kind"),
    "dict of unequal tensors": (
        {"train_data": lambda: {"a": torch.zeros(5), "b": torch.zeros(6)}}, "data-of-unknown-kind",
    ),
    "nothing": ({"train_data": made(None)}, "data-of-unknown-kind"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_experiment_is_refused(lab: Lab, tell: Tell, plain: Plain, name: str) -> None:
    fields, rule = REFUSED[name]
    folder = lab.new()
    assert rule_of(lab, plain(**fields), folder) == rule
    finding = tell.failure(folder)
    assert finding.rule == rule and finding.fixes[0].text
    assert read_run(folder).status == "failed"


@pytest.mark.parametrize(
    "fields",
    [
        {"validate_every": 0}, {"validate_every": "batch"}, {"schedule_every": "batch"},
        {"clip_norm": 0.0}, {"clip_norm": -1.0}, {"ema": 1.0}, {"batch_size": 0}, {"epochs": 0},
        {"steps": 5}, {"epochs": None}, {"early_stop": 0},
        {"early_stop": 3, "validation_data": None}, {"labels": "cat"}, {"labels": [1, 2]},
        {"labels": ["cat", "dog", "cat"]},
    ],
    ids=str,
)  # fmt: skip
def test_experiment_is_refused_when_it_is_made(plain: Plain, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        plain(**fields)
    assert caught.value.rule == "bad-experiment"


# State that cannot be stored.


class KeepsFunctions(torch.optim.SGD):
    """Puts something into its state that no checkpoint can hold."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["function"] = len
        return super().step(closure)


class ScheduleWithFunction:
    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return {"function": len}


@pytest.mark.parametrize(
    ("fields", "path", "step"),
    [
        ({"schedule": ScheduleWithFunction}, "schedule.function", 0),
        ({"optimizer": lambda p: KeepsFunctions(p, lr=0.1)}, "optimizer.state.0.function", 1),
    ],
    ids=["before the first step", "after the first step"],
)
def test_state_that_cannot_be_stored_is_refused_at_once(
    lab: Lab, tell: Tell, plain: Plain, fields: dict[str, Any], path: str, step: int
) -> None:
    folder = lab.new()
    assert rule_of(lab, plain(**fields), folder) == "state-cannot-be-stored"
    assert f"`{path}`" in tell.failure(folder).problem
    assert tell.events(folder, Failed)[0].step == step


def test_operation_that_does_not_repeat_is_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, labels = batch
        # One of the few operations that do not repeat on a CPU either.
        inputs.clone().put_(torch.tensor([0]), torch.tensor([1.0]))
        return nn.functional.cross_entropy(model(inputs), labels)

    assert rule_of(lab, plain(loss=loss), lab.new()) == "nondeterministic-operation"
    lab.run(plain(loss=loss), deterministic=False)


# Two at once.


def test_second_process_is_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    lock = folder.lock()
    assert lock.acquire()
    try:
        assert rule_of(lab, plain(), folder) == "run-in-use"
        assert read_run(folder).status == "running"
    finally:
        lock.release()
    assert tell.events(folder) == []
    lab.go_on(folder, plain())


# Weights that do not fit.


def other_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))


def test_initial_weights_that_do_not_fit_are_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    other = lab.run(plain(model=other_model, epochs=1))
    folder = lab.new(init=str(other.weights))
    assert rule_of(lab, plain(), folder) == "weights-do-not-fit"
    because = tell.failure(folder).because or ""
    assert "4.weight is missing" in because
    damaged = folder.path / "damaged.safetensors"
    damaged.write_bytes(b"no tensors at all")
    for path in (damaged, folder.path / "nowhere.safetensors"):
        assert rule_of(lab, plain(), lab.new(init=str(path))) == "weights-not-readable"
    assert tell.events(folder, RecipeSet) == []


def test_model_that_is_another_one_on_resume_is_refused(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    lab.go_on(folder, plain(), stop_after=3)
    assert rule_of(lab, plain(model=other_model), folder) == "experiment-changed"
    before = tell.state(folder)
    assert before["position"]["step"] == 3
    lab.go_on(folder, plain())


def test_failure_ends_with_its_exception(lab: Lab, plain: Plain) -> None:
    with pytest.raises(RunFailed) as caught:
        lab.run(plain(train_data=poisoned({1})))
    assert str(caught.value)


def test_want_of_memory_is_known_by_every_library_that_says_it() -> None:
    said = (CASES / "out_of_memory.txt").read_text(encoding="utf-8").splitlines()
    lines = [line.partition(" | ") for line in said if line and not line.startswith("#")]
    found = {text: is_out_of_memory(RuntimeError(text)) for _, _, text in lines}
    assert found == {text: kind == "memory" for kind, _, text in lines}


def test_missing_algorithm_is_no_want_of_memory_in_the_end(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        if model.training:
            raise RuntimeError("GET was unable to find an engine to execute this computation")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    folder = lab.new()
    assert rule_of(lab, plain(loss=loss), folder) == "no-convolution-algorithm"
    assert "engine" in str(tell.failure(folder).because)


def test_own_functions_that_tell_where_a_failure_came_from_are_there() -> None:
    # Named by file and function, which neither imports nor types follow when one is moved.
    package = Path(flatout.__file__).parent
    for file in AT_WORK:
        assert (package / file).is_file(), file
    for file, name in (*WORKING, RECORDING):
        tree = ast.parse((package / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in defined, f"{file}: {name}"


def test_a_failure_is_logged_before_other_ranks_are_left(lab: Lab, tell: Tell) -> None:
    folder = lab.new()
    last_lines: list[object] = []

    class SlowToLeave(SingleRank):
        def leave(self, error: BaseException | None = None) -> None:
            if error is not None:
                last_lines.append(tell.events(folder)[-1])

    def load() -> Experiment:
        raise UsageError("bad-experiment", "the experiment is wrong.", fix="mend it")

    spec = read_run(folder).header.spec
    task = TrainTask(folder, spec, Change(), StopRequest(), ranks=SlowToLeave())
    with pytest.raises(UsageError):
        train_in(task, load)
    assert [type(line) for line in last_lines] == [Failed]
