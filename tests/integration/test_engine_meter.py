"""Where the time goes, how much is told, and that a training leaves nothing behind."""

from __future__ import annotations

import gc
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.busy_machine import first_good
from torch import Tensor, nn

import flatout.engine
from flatout.engine import Experiment
from flatout.engine.runtime.energy import EnergyMeter, gpu_joules
from flatout.engine.runtime.step_timer import PARTS
from flatout.errors import RunFailed, UsageError
from flatout.schema.run_lines import Finished, Progress, Started, Validated

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


def sleeping(model: nn.Module, batch: Any) -> Tensor:
    time.sleep(0.01)
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class SlowPoints(torch.utils.data.Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(0.001)
        return torch.randn(6), index % 3


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4000), nn.ReLU(), nn.Linear(4000, 3))


# Time.


@pytest.mark.timing
def test_split_is_the_time_that_passed(lab: Lab, tell: Tell, plain: Plain) -> None:
    experiment = plain(loss=sleeping, train_data=SlowPoints, model=wide)

    def trained() -> tuple[Started, Finished]:
        folder = lab.run(experiment, loader_workers=0, checkpoint_every=4)
        [started], [finished] = tell.events(folder, Started), tell.events(folder, Finished)
        return started, finished

    def is_undisturbed(lines: tuple[Started, Finished]) -> bool:
        started, finished = lines
        split = finished.split_s
        asleep_s = split["forward"] + split["data"] + split["validation"]
        is_whole = finished.train_s == pytest.approx(finished.at - started.at, rel=0.1)
        return is_whole and asleep_s > 0.5 * finished.train_s

    # Other programs take time before and after it, and where nothing sleeps.
    started, finished = first_good(trained, is_undisturbed)
    assert finished.train_s == pytest.approx(finished.at - started.at, rel=0.1)
    split = finished.split_s
    assert set(split) == set(PARTS)
    assert finished.train_s == pytest.approx(sum(split.values()))
    # 18 steps and 9 validations of 10 ms, 144 samples of 1 ms.
    assert split["forward"] > 0.18 and split["data"] > 0.14 and split["validation"] > 0.09
    assert split["backward"] > 0 and split["optimizer"] > 0 and split["checkpoint"] > 0
    assert split["copy"] == 0
    assert split["forward"] + split["data"] + split["validation"] > 0.5 * finished.train_s


def test_split_goes_on_when_resumed(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.new()
    begin_s = time.perf_counter()
    lab.go_on(folder, plain(loss=sleeping), stop_after=10)
    before = tell.state(folder)["split_s"]
    time.sleep(1.0)
    lab.go_on(folder, plain(loss=sleeping))
    whole_s = time.perf_counter() - begin_s
    [finished] = tell.events(folder, Finished)
    assert before["forward"] > 0.1
    assert finished.split_s["forward"] > before["forward"] + 0.1
    # Of both parts, without the pause between them.
    assert finished.train_s < whole_s - 1.0


def test_at_most_ten_lines_a_second(lab: Lab, tell: Tell, plain: Plain) -> None:
    # Epochs of a few milliseconds, validated and saved all the time.
    experiment = plain(epochs=100, validation_data=None)
    folder = lab.run(experiment, checkpoint_every=12)
    lines = tell.metrics(folder, Progress)
    by_second = Counter(int(line.at - lines[0].at) for line in lines)
    assert len(lines) >= 2
    # One more where a stretch ends with what is left.
    assert max(by_second.values()) <= 11
    assert lines[-1].step == 100 * 7


def test_progress_tells_of_all_that_was_trained(lab: Lab, tell: Tell, plain: Plain) -> None:
    folder = lab.run(plain(loss=sleeping, epochs=5))
    lines = tell.metrics(folder, Progress)
    assert len(lines) >= 3
    for before, line in zip(lines, lines[1:], strict=False):
        assert line.step > before.step and line.epoch >= before.epoch
        assert line.loss is not None and line.samples_per_s and line.samples_per_s < 800
        assert line.learning_rate == pytest.approx(0.01)
        assert line.memory_bytes and line.memory_bytes > 10**7
        assert sum(line.split_s.values()) > sum(before.split_s.values())


# What validation and the calling process must not notice.


@pytest.mark.timing
def test_rate_is_that_of_training_when_validation_is_slow(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def slow(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        time.sleep(0.2)
        return {"accuracy": torch.ones(())}

    folder = lab.run(plain(loss=sleeping, metrics=slow, epochs=3))
    [finished] = tell.events(folder, Finished)
    assert finished.split_s["validation"] > 0.6
    lines = tell.metrics(folder, Progress)
    # The validation's time is in the line after it, if anywhere.
    slowest = min(line.samples_per_s for line in lines if line.samples_per_s is not None)
    steps_s = finished.train_s - finished.split_s["validation"]
    assert slowest > finished.num_samples_seen / steps_s / 3


@pytest.mark.parametrize("every", ["epoch", 2])
def test_validation_does_not_change_the_training(
    lab: Lab, tell: Tell, plain: Plain, every: Any
) -> None:
    def metrics(model: nn.Module, batch: Any) -> dict[str, Any]:
        noise = torch.rand(1) + random.random() + np.random.random()
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1]) + noise[0]}

    without = lab.run(plain(validation_data=None))
    with_it = lab.run(plain(metrics=metrics, validate_every=every))
    kept = [tell.state(folder)["model"] for folder in (without, with_it)]
    assert str(kept[0]) == str(kept[1])
    assert len(tell.metrics(with_it, Validated)) == (3 if every == "epoch" else 11)


def settings() -> list[Any]:
    return [
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.is_grad_enabled(),
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGTERM),
        sorted(thread.name for thread in threading.enumerate()),
    ]


def generators() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("is_failing", [False, True])
def test_calling_process_is_left_as_it_was(plain: Plain, is_failing: bool) -> None:
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = settings(), generators()
        experiment = plain(loss=nan_loss) if is_failing else plain()
        try:
            flatout.engine.train(experiment, use={"num_threads": 2}, is_quiet=True)
        except RunFailed:
            assert is_failing
        gc.collect()
        assert settings() == before[0]
        assert generators() == before[1]
    finally:
        torch.use_deterministic_algorithms(False)


def nan_loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) * float("nan")


# In a notebook.


@pytest.mark.usefixtures("lab")
def test_train_gives_the_run_and_the_model(
    plain: Plain, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = flatout.engine.train(plain(), use={"num_threads": 1}, seed=3, name="mine")
    assert trained.run.id == "mine" and trained.run.status == "finished"
    assert trained.run.header.spec.seed == 3
    assert trained.metrics["loss"] == trained.run.validations[-1].metrics["loss"]
    assert trained.model.training is True
    reported = capsys.readouterr().out.splitlines()
    assert len(reported) == 3 and reported[0].startswith("epoch 1  step 7  train loss ")
    again = flatout.engine.train(
        plain(epochs=4), use={"num_threads": 1}, resume="mine", is_quiet=True
    )
    assert again.run.step == 28
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("lab")
def test_train_refuses_before_a_run_is_made(plain: Plain) -> None:
    for arguments, rule in (
        ({"use": {"presicion": "bf16"}}, "unknown-recipe-field"),
        ({"use": {"precision": "fp99"}}, "bad-recipe-value"),
        ({"name": "a/b"}, "bad-run-name"),
        ({"resume": "nobody"}, "unknown-run"),
    ):
        with pytest.raises(UsageError) as caught:
            flatout.engine.train(plain(), **arguments)
        assert caught.value.rule == rule
    from flatout.system.store.run_folder import run_paths

    assert run_paths() == []


@pytest.mark.usefixtures("lab")
def test_train_in_a_thread_goes_without_signals(plain: Plain) -> None:
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(flatout.engine.train(plain(epochs=1), is_quiet=True))
    )
    thread.start()
    thread.join()
    assert found[0].run.status == "finished"


@pytest.mark.usefixtures("lab")
def test_interrupt_stops_after_the_step(plain: Plain) -> None:
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += model.training
        if calls == 5:
            signal.raise_signal(signal.SIGINT)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    trained = flatout.engine.train(plain(loss=loss), is_quiet=True, name="stopped")
    assert trained.run.status == "stopped" and trained.run.step == 5
    assert trained.run.checkpoint_step == 5
    whole = flatout.engine.train(plain(), is_quiet=True)
    resumed = flatout.engine.train(plain(), resume="stopped", is_quiet=True)
    for one, two in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_power_is_energy_by_time() -> None:
    energy_j, now_s = [1000.0], [5.0]
    meter = EnergyMeter(lambda: energy_j[0], lambda: now_s[0])
    assert meter.mean_w() is None, "the driver counts in steps"
    energy_j[0], now_s[0] = 4000.0, 15.0
    assert meter.mean_w() == 300.0
    energy_j[0] = 10.0
    assert meter.mean_w() is None, "the driver was loaded anew"
    assert EnergyMeter(gpu_joules(torch.device("cpu"))).mean_w() is None
