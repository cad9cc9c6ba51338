"""The workloads of `flatout bench run`, trained with torch on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from flatout.engine.bench import energy, run_worker
from flatout.engine.bench.meta_counts import counted_flops, counted_launches
from flatout.engine.bench.run_recipe import chosen_recipe
from flatout.engine.bench.run_worker import evaluated, reply_to
from flatout.engine.bench.workloads import (
    part_of,
    random_images,
    workload_experiment,
    wsl2_benchmark_network,
)
from flatout.engine.feed.select_feed import built_data
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.tuner import ab_timing
from flatout.engine.tuner.ab_timing import TimedLoop
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.schema.recipe import Choice, Recipe
from flatout.schema.run_protocol import (
    RecipeChosen,
    RecipeRequest,
    WorkloadMeasured,
    WorkloadRequest,
)
from flatout.schema.tuning import Decision, Interval, Known, Rung
from flatout.schema.workloads import WORKLOADS, MeasuredSize, measured_size
from flatout.system.clock import now_s, sleep_s
from flatout.system.rapl import RaplCounter
from flatout.system.store import datasets, recipe_cache
from flatout.tune.cache import cache_key, search_identity

CPU = torch.device("cpu")
SHORT_MLP = MeasuredSize(workload="mlp", text="", parameters={}, batch_size=64, num_steps=4)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))


def measured(size: MeasuredSize, changes: dict[str, Any] | None) -> WorkloadMeasured:
    request = WorkloadRequest(
        size=size, device="cpu", changes=changes, started_at=now_s() - 10, num_blocks=3,
        block_s=0.002,
    )  # fmt: skip
    reply = reply_to(request)
    assert isinstance(reply, WorkloadMeasured)
    return reply


def published(name: str) -> MeasuredSize:
    return measured_size(WORKLOADS[name], "cuda", ["cuda"], 16)


def test_both_ways_compute_the_same() -> None:
    plain = measured(SHORT_MLP, None)
    tuned = measured(SHORT_MLP, {"optimizer_implementation": "fused", "num_threads": 1})
    assert (plain.num_parameters, plain.samples_per_step) == (2817, 64)
    assert plain.dtype == tuned.dtype == "fp32" and tuned.num_threads == 1
    # Four updates of a thousandth each, in different orders of samples.
    assert tuned.loss == pytest.approx(plain.loss, rel=0.05)


def test_quantities_of_a_process() -> None:
    reply = measured(SHORT_MLP, None)
    assert len(reply.step_s) == 3 and all(0 < one < 1 for one in reply.step_s)
    assert 10 < reply.time_to_steps_s < 60
    # 64 samples: 20 x 128 and 128 x 1, each three times but for the gradient of the input.
    assert reply.flops_per_step == 64 * 2 * (2 * 20 * 128 + 3 * 128)
    assert 0 < reply.data_share < 1 and reply.host_share is None
    assert reply.peak_bytes > 5e7 and reply.accuracy is None
    assert all(0 < one <= 64 for one in reply.mean_samples)
    assert (reply.energy_j is None) == (reply.no_energy is not None)


@pytest.mark.parametrize(
    ("name", "per_sample"),
    [
        # Sources: docs of the workloads; 3 x forward, the first layer's gradient apart.
        ("mnist-large", 1.661e9), ("mnist-wsl2", 1.661e9), ("resnet50", 24.6e9),
        ("gpt3-small", 860e6 * 1024),
    ],
)  # fmt: skip
def test_published_sizes_cost_what_is_published(
    name: str, per_sample: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "find", lambda name: None)
    size = with_batch(published(name), 2)
    experiment = workload_experiment(size).experiment
    flops, why = counted_flops(experiment, built_data(experiment, experiment.train_data))
    assert why is None and flops is not None
    assert flops / 2 == pytest.approx(per_sample, rel=0.02)


def with_batch(size: MeasuredSize, batch_size: int) -> MeasuredSize:
    return MeasuredSize(
        workload=size.workload, text=size.text, parameters=size.parameters,
        batch_size=batch_size, num_steps=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "millions"),
    [("mnist-wsl2", 120.3), ("resnet50", 25.6), ("bert-large", 335), ("gpt3-small", 124.5)],
)
def test_published_networks_have_their_weights(name: str, millions: float) -> None:
    with torch.device("meta"):
        model = workload_experiment(published(name)).experiment.model()
    num = sum(weight.numel() for weight in model.parameters())
    assert num / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_trains_where_there_is_no_data(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "find", lambda name: None)
    small: dict[str, Any] = {
        "mlp": {}, "mnist-large": {"size": "tiny"}, "mnist-wsl2": {"channels": 2},
        "resnet50": {"size": "tiny"}, "bert-large": {"depth": 1, "length": 8},
        "gpt3-small": {"depth": 1, "length": 8}, "charlm": {"size": "tiny"},
    }  # fmt: skip
    size = MeasuredSize(workload=name, text="", parameters=small[name], batch_size=2, num_steps=2)
    subject = workload_experiment(size)
    assert any(word in subject.data for word in ("random", "made-up"))
    reply = measured(size, None)
    assert reply.loss == reply.loss and reply.flops_per_step
    assert (reply.tokens_per_sample is not None) == WORKLOADS[name].has_tokens
    recipe = chosen_recipe(subject.experiment, RecipeRequest(size=size, device="cpu"))
    tuned = measured(size, recipe.changes)
    # Two updates do not lead far apart, and begin with the same weights.
    assert tuned.loss == pytest.approx(reply.loss, rel=0.5)
    assert tuned.flops_per_step == reply.flops_per_step


def test_dropout2d_drops_whole_channels() -> None:
    model = wsl2_benchmark_network(4).train()
    dropouts = [layer for layer in model if isinstance(layer, nn.Dropout2d)]
    assert [one.p for one in dropouts] == [0.25, 0.5]
    out_NCHW = dropouts[0](torch.ones(64, 4, 11, 11))
    kept = out_NCHW.ne(0).flatten(2)
    assert bool((kept.all(2) | ~kept.any(2)).all()) and 0 < kept.float().mean() < 1


def test_random_images_can_be_learned() -> None:
    images, labels = random_images(20, 1)
    assert images.shape == (20, 1, 28, 28) and images.dtype == labels.dtype == torch.uint8
    assert torch.equal(random_images(20, 1)[0], images)
    assert len(part_of((images, labels), 18, 5)[1]) == 2


def test_evaluation_is_a_mean_over_all_samples_and_leaves_the_model_training() -> None:
    experiment = workload_experiment(SHORT_MLP).experiment
    model = experiment.model().train()
    loss, accuracy = evaluated(experiment, model, CPU)
    data = part_of(built_data(experiment, experiment.validation_data), 0, 512)
    assert experiment.loss is not None and model.training and accuracy is None
    assert loss == pytest.approx(experiment.loss(model, data).item(), rel=1e-4)


def test_flops_not_counted_has_a_reason() -> None:
    experiment = workload_experiment(SHORT_MLP).experiment

    def reading(model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).sum().item() * model(batch[0]).sum()

    broken = dataclasses.replace(experiment, loss=reading)
    flops, why = counted_flops(broken, built_data(experiment, experiment.train_data))
    assert flops is None and (why or "").startswith("FLOPs not counted: ")


def test_timer_of_the_plain_loop_sees_waiting_for_data() -> None:
    experiment = workload_experiment(SHORT_MLP).experiment

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            sleep_s(0.01)
            return torch.zeros(20), torch.zeros(1)

    slow = dataclasses.replace(experiment, train_data=Slow, batch_size=4)
    timer = StepTimer(CPU)
    loop = CandidateBuilder(TuningTask(experiment=slow, device_name="cpu")).plain(timer=timer)
    loop.timed(2)
    assert timer.split_s()["data"] >= 0.08


class Launching:
    """A runner whose host is done long before its GPU: it takes 20 ms by this clock.

    clock_s: the time, in a list.
    """

    def __init__(self, clock_s: list[float]) -> None:
        self.clock_s = clock_s

    def run(self, num_updates: int) -> int:
        self.clock_s[0] += 0.02
        return num_updates

    def close(self) -> None:
        pass


def launching(device: torch.device, clock_s: list[float]) -> TimedLoop:
    return TimedLoop(runner=Launching(clock_s), settings=contextlib.nullcontext, device=device)


def recipe_with(**changes: Any) -> Recipe:
    builder = CandidateBuilder(
        TuningTask(experiment=workload_experiment(SHORT_MLP).experiment, device_name="cpu")
    )
    return changed_fields(builder.recipe({}), changes)


def changed_fields(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    choices = {name: Choice(value=value, why="test") for name, value in values.items()}
    return msgspec.structs.replace(recipe, **choices)


def test_host_share_is_of_one_launch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [0.0]

    def wait_for(device: torch.device) -> None:
        clock_s[0] += 0.01

    monkeypatch.setattr(run_worker, "wait_for", wait_for)
    monkeypatch.setattr(run_worker, "elapsed_s", lambda: clock_s[0])
    loop, sliced = launching(torch.device("cuda:0"), clock_s), recipe_with(data_path="sliced")
    assert run_worker._host_share(loop, sliced, 0.1, 100) == (pytest.approx(0.2), None)
    in_graph = changed_fields(sliced, {"capture": "step", "steps_per_launch": 4})
    assert run_worker._host_share(loop, in_graph, 0.1, 100_000) == (pytest.approx(0.05), None)


@pytest.mark.parametrize(
    ("changes", "num_launches", "words"),
    [
        ({"data_path": "sliced"}, 5000, "5000 launches"),
        ({"data_path": "sliced"}, None, "could not be counted"),
        ({"data_path": "loader", "loader_pin_memory": False}, 10, "pageable"),
    ],
)
def test_host_share_is_unknown_where_the_host_waits_for_the_gpu(
    changes: dict[str, Any], num_launches: int | None, words: str
) -> None:
    loop, recipe = launching(torch.device("cuda:0"), [0.0]), recipe_with(**changes)
    share, why = run_worker._host_share(loop, recipe, 0.1, num_launches)
    assert share is None and words in (why or "")
    assert run_worker._host_share(launching(CPU, [0.0]), recipe, 0.1, 10)[0] is None


def test_launches_are_counted_without_computing() -> None:
    experiment = workload_experiment(SHORT_MLP).experiment
    data = built_data(experiment, experiment.train_data)
    whole = counted_launches(experiment, data, recipe_with(micro_batch_size=64))
    parts = counted_launches(experiment, data, recipe_with(micro_batch_size=16))
    assert whole is not None and 5 < whole < 100 and parts == 4 * whole


def test_blocks_are_long_enough_when_the_first_steps_were_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Steps(Launching):
        def run(self, num_updates: int) -> int:
            self.clock_s[0] += 0.02 * num_updates
            return num_updates

    clock_s = [0.0]
    monkeypatch.setattr(ab_timing, "elapsed_s", lambda: clock_s[0])
    loop = dataclasses.replace(launching(CPU, clock_s), runner=Steps(clock_s))
    # The first steps took a second each.
    assert run_worker._updates_per_block(loop, recipe_with(), 1.0, 0.05) == 4


# The recipe.


def request(budget_s: float | None) -> RecipeRequest:
    return RecipeRequest(size=SHORT_MLP, device="cpu", budget_s=budget_s)


def test_recipe_without_a_search_is_the_defaults() -> None:
    reply = reply_to(request(None))
    assert isinstance(reply, RecipeChosen) and "without a search" in reply.text
    assert "fused" in reply.changes.values()


def test_recipe_that_is_stored_is_taken() -> None:
    experiment = workload_experiment(SHORT_MLP).experiment
    builder = CandidateBuilder(TuningTask(experiment=experiment, device_name="cpu"))
    identity = search_identity(builder.identity, "default", has_processes=True)
    gain = Interval(middle=2.0, low=1.9, high=2.1)
    changes = {"optimizer_implementation": "fused", "data_path": "sliced"}
    rungs = [
        Rung(name=name, changes=changes, samples_per_s=1.0, gain=gain)
        for name in ("plain", "defaults", "fused")
    ]
    decision = Decision(
        changes=changes, rungs=tuple(rungs), lost=(), refused=(), skipped=(), speedup=gain,
        why="test", search_s=1.0,
    )  # fmt: skip
    known = Known(identity=identity, decided_at=0.0, is_thorough=True, decision=decision)
    recipe_cache.keep(cache_key(identity), known)
    reply = chosen_recipe(experiment, request(None))
    assert reply.text == "optimizer_implementation=fused (stored by a search)"
    assert reply.changes == changes


def test_recipe_when_the_search_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = chosen_recipe(workload_experiment(SHORT_MLP).experiment, request(0.001))
    # With no time there is nothing to find, and the defaults stay.
    assert "flatout's defaults" in reply.text and "search" in reply.text


# Energy.


def fake_gpu(monkeypatch: pytest.MonkeyPatch, *readings: float | None) -> energy.StepEnergy:
    counter = iter(readings)
    monkeypatch.setattr(energy, "gpu_joules", lambda device: lambda: next(counter))
    clock = iter((0.0, 5.0))
    monkeypatch.setattr(energy, "elapsed_s", lambda: next(clock))
    return energy.StepEnergy(torch.device("cuda:0"))


def test_energy_of_a_gpu_is_what_its_counter_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fake_gpu(monkeypatch, 10.0, 13.5).used() == (3.5, None)


def test_energy_when_the_driver_has_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "gpu_joules", lambda device: "not readable: no counter")
    meter = energy.StepEnergy(torch.device("cuda:0"))
    assert meter.used() == (None, "not readable: no counter") and not meter.is_early()


def test_energy_when_the_driver_was_reloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    joules, why = fake_gpu(monkeypatch, 10.0, 1.0).used()
    assert joules is None and (why or "").startswith("not readable")


def test_energy_of_a_cpu_by_rapl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "energy_uj").write_text("0")
    monkeypatch.setattr(energy, "rapl_counter", lambda: RaplCounter([zone]))
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(energy, "elapsed_s", lambda: clock.now)
    meter = energy.StepEnergy(CPU)
    (zone / "energy_uj").write_text("2500000")
    assert meter.is_early()
    assert meter.used() == (None, "not readable: measured for less than a second")
    clock.now = 2.0
    assert not meter.is_early()
    assert meter.used() == (2.5, None)


# The whole command.


def test_bench_run_of_a_small_workload(tmp_path: Path) -> None:
    out, html = tmp_path / "run.json", tmp_path / "run.html"
    words = ["bench", "run", "mlp", "--quick", "--devices", "cpu", "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flatout", *words, "--out", str(out), "--html", str(html)],
        env={**os.environ, "FLATOUT_STATE": str(tmp_path)}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file = json.loads(done.stdout)
    assert file == json.loads(out.read_text()) and file["kind"] == "run"
    rows = {row["id"]: row for row in file["rows"]}
    for way in ("plain", "flatout"):
        assert len(rows[f"run/mlp/{way}/cpu/step_s"]["samples"]) == 5
        assert 0.1 < rows[f"run/mlp/{way}/cpu/loss"]["samples"][0] < 2
        # No limits are stored in a new folder.
        assert "flatout bench limits" in rows[f"run/mlp/{way}/cpu/mfu"]["unread"]
    assert "Step times" in html.read_text()
