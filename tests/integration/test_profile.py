"""`flatout profile` with torch: real steps, real events, real lines."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from support.busy_machine import first_good
from torch import Tensor, nn

from flatout.cli.render.show_profile import View, print_profile
from flatout.engine.profile.data_probes import cut, data_probes, padding_of, repeated
from flatout.engine.profile.events import profile_report
from flatout.engine.profile.lines import LineSampler
from flatout.engine.profile.memory import memory_use
from flatout.engine.profile.model_calls import repeated_calls
from flatout.engine.profile.report import Profiler
from flatout.engine.profile.split import MeasuredSteps
from flatout.engine.profile.steps import built_for, session_of
from flatout.engine.profile.trace import BEGIN, mark, recorded_layers, trace_events
from flatout.engine.profile.worker import profile as profile_here
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.session.session import process_settings
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.errors import RunFailed, UsageError
from flatout.monitor.advice import advice_for
from flatout.runs.profile import ProfileCommand, profile
from flatout.runs.start import specify
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.profile_protocol import ProfileRequest
from flatout.schema.run import RunHeader
from flatout.schema.step_profile import MODEL_ALONE, StepProfile
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuning import Decision, Interval, Known, Rung
from flatout.system.store import recipe_cache
from flatout.system.store.run_folder import create_run
from flatout.tune.cache import cache_key, search_identity

EXPERIMENT = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
import flatout

class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        for number in range(64):
            yield torch.full((8,), float(number)), torch.ones(1)

def loss(model, batch):
    inputs, targets = batch
    {body}
    return mse_loss(model(inputs), targets)

def step(updates, model, batch):
    return updates["optimizer"](loss(model, batch))

def experiment(batch_size: int = 16):
    return flatout.Experiment(
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        {step}, train_data={data}, batch_size=batch_size, epochs=1,
    )
"""
SLOW = """
import time
import torch
from torch import nn
from torch.nn.functional import mse_loss
import flatout

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        time.sleep(PAUSE_S)
        return torch.full((8,), float(index)), torch.ones(1)

def experiment():
    return flatout.Experiment(
        model=lambda: nn.Linear(8, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]), train_data=Slow,
        batch_size=16, epochs=1,
    )
"""
TENSORS = "lambda: (torch.randn(256, 8), torch.ones(256, 1))"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last report of each experiment is kept there."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))


def written(folder: Path, body: str = "pass", step: str = "loss=loss", data: str = TENSORS) -> str:
    # A name of its own: files are imported by their names.
    path = folder / f"made_{folder.name}.py"
    path.write_text(EXPERIMENT.format(body=body, step=step, data=data))
    return str(path)


def report_of(experiment: str, **options: Any) -> StepProfile:
    """The report and its advice, made in this process."""
    trace = options.pop("trace", None)
    request = TrainRequest(experiment=experiment, device="cpu", **options)
    spec = specify(request)
    loaded = load_experiment(spec)
    built, recipe, warnings = built_for(loaded, spec)
    wanted = ProfileRequest(spec=spec, num_steps=3, trace=trace)
    with process_settings(recipe):
        session = session_of(built, recipe)
        try:
            report = Profiler(session, wanted, lambda line: None, warnings).report()
        finally:
            session.close()
    return msgspec.structs.replace(report, advice=advice_for(report))


def command_of(experiment: str, *, is_proved: bool = False, **options: Any) -> StepProfile:
    """The same as the command does it."""
    request = TrainRequest(experiment=experiment, device="cpu", python=sys.executable, **options)
    command = ProfileCommand(request=request, num_steps=3, is_proved=is_proved)
    found = list(profile(command))[-1]
    assert isinstance(found, StepProfile)
    return found


def profiled_here(experiment: str, **options: Any) -> StepProfile:
    """The profile without the limits of this machine, by this process."""
    spec = specify(TrainRequest(experiment=experiment, device="cpu", **options))
    found: list[Any] = []
    profile_here(ProfileRequest(spec=spec, num_steps=3), found.append)
    report = found[-1].profile
    assert isinstance(report, StepProfile)
    return report


def check(report: StepProfile) -> None:
    """What every report promises."""
    whole = sum(one.seconds or 0.0 for one in report.split)
    assert whole == pytest.approx(report.mean_step_s, rel=1e-3)
    assert all(one.seconds is not None or one.reason for one in report.split)
    assert report.num_profiled == 3
    assert report.overhead > 0
    assert report.operators
    assert (report.processor.cycles is None) == ("cycles" in report.processor.reasons)
    assert len(report.advice) <= 3


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepProfile, Path]:
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    return report_of("digits", trace=str(trace)), trace


def test_profile_of_a_built_in_is_whole(digits: tuple[StepProfile, Path]) -> None:
    report, _ = digits
    check(report)
    assert report.seconds("matrix") + report.seconds("convolution") > 0
    assert report.roofs.flops
    assert any(row.part in ("matrix", "convolution") for row in report.operators)
    assert len(report.layers) > 2
    assert report.samples_per_s == pytest.approx(
        (report.samples_per_step or 0) / report.mean_step_s
    )


def test_memory_at_the_peak_has_weights_and_layers(digits: tuple[StepProfile, Path]) -> None:
    use = digits[0].memory
    assert use.peak_bytes is not None and use.reason is None
    names = [one.name for one in use.at_peak]
    assert "weights and buffers" in names
    assert sum(one.num_bytes for one in use.at_peak) == use.peak_bytes
    assert len(use.timeline) > 5


def test_trace_opens_as_chrome_traces_do(digits: tuple[StepProfile, Path]) -> None:
    loaded = json.loads(digits[1].read_text())
    events = loaded["traceEvents"]
    assert any(one.get("name") == "aten::mm" or "conv" in one.get("name", "") for one in events)
    assert all({"ph", "ts"} <= set(one) or one.get("ph") == "M" for one in events)


@pytest.mark.parametrize(
    ("name", "settings"), [("mlp", ()), ("resnet50", ("size=tiny", "batch_size=8", "samples=64"))]
)
def test_profile_of_built_ins(name: str, settings: tuple[str, ...]) -> None:
    check(report_of(name, settings=settings))


def test_iterable_data_can_be_profiled(tmp_path: Path) -> None:
    report = report_of(written(tmp_path, data="Rows"))
    check(report)
    assert report.traits.data_kind == "iterable"


def test_own_step_can_be_profiled_without_probes_of_its_loss(tmp_path: Path) -> None:
    report = report_of(written(tmp_path, step="step=step"))
    check(report)
    assert report.traits.has_own_step
    assert "flops" in report.roofs.reasons
    assert not any(probe.advice == "small-batch" for probe in report.probes)


def test_values_that_are_read_are_the_first_advice(tmp_path: Path) -> None:
    body = "for row in inputs.repeat(8, 1):\n        row[0].item()"
    report = report_of(written(tmp_path, body=body))
    assert report.advice[0].id == "synchronization"
    assert any(".item()" in line.text for line in report.advice[0].lines)
    assert (report.traits.num_syncs or 0) >= 128


@pytest.mark.skipif(sys.platform == "win32", reason="lines cannot be sampled there")
def test_loop_outside_of_the_model_is_counted_and_measured_against_the_model_alone(
    tmp_path: Path,
) -> None:
    body = "for row in inputs.repeat(8, 1):\n        row.mul(2).sum()"
    report = report_of(written(tmp_path, body=body))
    [model] = [probe for probe in report.probes if probe.advice == MODEL_ALONE]
    # Twice the time for what is outside of it is not a matter of a busy machine.
    assert model.ratio is not None and model.ratio.middle < 0.5
    loop = next(line for line in report.lines if "row.mul" in line.text)
    assert loop.count == 128
    assert not loop.is_in_model


@pytest.mark.skipif(sys.platform == "win32", reason="lines cannot be sampled there")
def test_lines_of_a_forward_pass_are_in_the_model_and_others_are_not() -> None:
    class Slow(nn.Module):
        def forward(self, seconds: float) -> None:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                pass

    model, sampler = Slow(), LineSampler()
    with sampler.running():
        model(0.1)
    assert {one.is_in_model for one in sampler.lines(1) if one.function == "forward"} == {True}
    sampler = LineSampler()
    with sampler.running():
        Slow.forward(model, 0.1)
    assert {one.is_in_model for one in sampler.lines(1) if one.function == "forward"} == {False}


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def replayed(
    model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor], batch: Tensor
) -> tuple[int, int]:
    """How often a loss calls a model, and how often its calls alone do, with gradients cleared."""
    count = 0

    def see(*_: Any) -> None:
        nonlocal count
        count += 1

    model.register_forward_hook(see)
    run = repeated_calls(model, partial(loss, model, batch), contextlib.nullcontext)
    once, count = count, 0
    run()
    assert all(weight.grad is None for weight in model.parameters())
    return once, count


def test_calls_of_a_model_are_repeated_as_the_loss_makes_them() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, *, inputs: Tensor) -> dict[str, Any]:
            return {"pair": Pair(self.linear(inputs), inputs)}

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with torch.no_grad():
            target = model(inputs=batch)["pair"].first
        # The second call's inputs need a gradient, and come from the first.
        first = model(inputs=batch)["pair"].first
        second: Tensor = model(inputs=first)["pair"].first
        return (second - target).square().mean()

    assert replayed(Named(), loss, torch.randn(2, 4)) == (3, 3)


def test_model_that_the_loss_does_not_call_cannot_be_measured_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="no call of the model was seen"):
        replayed(model, lambda model, batch: model[0](batch).mean(), torch.randn(2, 4))  # type: ignore[index]


def test_results_without_a_gradient_cannot_be_measured() -> None:
    class Detached(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).detach()

    with pytest.raises(ValueError, match="no tensors with a gradient"):
        replayed(Detached(4, 4), lambda model, batch: model(batch).mean(), torch.randn(2, 4))


def test_failing_experiment_is_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as raised:
        command_of(written(tmp_path, body="raise ValueError('no such row')"))
    assert raised.value.rule == "experiment-raised"


def test_recipe_that_cannot_be_carried_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        command_of(written(tmp_path), uses=("precision=float8",))


def test_proof_measures_a_recipe_field(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a compiler, to compile is no advice, and no minute is spent on proving that as well.
    monkeypatch.setenv("CXX", "no-such-compiler")
    report = command_of("mlp", is_proved=True, uses=("micro_batch_size=2",))
    found = next(one for one in report.advice if one.id == "small-micro-batch")
    assert found.measured is not None
    assert found.measured.middle > 1.5


def keep_search(experiment: str, changes: dict[str, Any]) -> None:
    """Keeps what a search of `flatout train` could have found."""
    spec = specify(TrainRequest(experiment=experiment, device="cpu"))
    loaded = load_experiment(spec)
    builder = CandidateBuilder(TuningTask(experiment=loaded, device_name="cpu", fixed=spec.fixed))
    facts = search_identity(builder.identity, "default", has_processes=True)
    gain = Interval(middle=1.5, low=1.4, high=1.6)
    rungs = (
        Rung(name="plain loop", changes={}, samples_per_s=1.0),
        Rung(name="flatout's defaults", changes={}, samples_per_s=1.0),
        Rung(name="found", changes=changes, samples_per_s=1.5, gain=gain),
    )
    decision = Decision(
        changes=changes, rungs=rungs, lost=(), refused=(), skipped=(), speedup=gain, why="it is",
        search_s=1.0,
    )  # fmt: skip
    known = Known(identity=facts, decided_at=0.0, is_thorough=True, decision=decision)
    recipe_cache.keep(cache_key(facts), known)


def test_profile_is_of_the_recipe_that_a_search_has_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = written(tmp_path)
    assert profiled_here(experiment).tuned == {}
    keep_search(experiment, {"micro_batch_size": 4})
    report = profiled_here(experiment)
    assert report.tuned == {"micro_batch_size": 4}
    assert report.recipe["micro_batch_size"] == 4
    print_profile(report, View())
    assert "found by a search: micro_batch_size=4" in capsys.readouterr().out
    # It was searched without that.
    assert profiled_here(experiment, uses=("nonfinite_loss=skip",)).tuned == {}


@pytest.mark.parametrize(("pause_s", "is_left_out"), [(0.0, False), (0.03, True)])
def test_samples_that_take_long_to_read_are_not_kept_for_a_profile(
    tmp_path: Path, pause_s: float, is_left_out: bool
) -> None:
    experiment = tmp_path / f"slow_{is_left_out}.py"
    experiment.write_text(SLOW.replace("PAUSE_S", str(pause_s)))
    keep_search(str(experiment), {"data_path": "cached", "loader_workers": 1})
    report = profiled_here(str(experiment))
    # The training's own workers read in the first epoch.
    assert report.recipe["loader_workers"] == 1
    assert (report.recipe["data_path"] != "cached") is is_left_out
    if is_left_out:
        assert report.tuned == {"loader_workers": 1}
        assert report.not_tuned is not None and "reading 2,000 samples" in report.not_tuned
        assert report.traits.not_cached == report.not_tuned
    else:
        assert report.tuned == {"data_path": "cached", "loader_workers": 1}
        assert report.not_tuned is None


def test_recipe_that_does_not_work_any_more_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = written(tmp_path)
    keep_search(experiment, {"micro_batch_size": 4})

    def refused(built: Any, recipe: Any) -> Any:
        if recipe.micro_batch_size.value == 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return session_of(built, recipe)

    monkeypatch.setattr("flatout.engine.profile.worker.session_of", refused)
    report = profiled_here(experiment)
    assert report.tuned == {}
    assert report.recipe["micro_batch_size"] == 16
    assert report.not_tuned is not None and report.not_tuned.endswith(
        "not enough memory for this step."
    )


def test_training_and_profile_look_for_the_same_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = written(tmp_path)
    keys: list[str] = []
    monkeypatch.setattr(recipe_cache, "recall", keys.append)
    spec = specify(TrainRequest(experiment=experiment, device="cpu", tune="auto"))
    loaded = load_experiment(spec)
    header = RunHeader(id="a", created_at=0.0, flatout_version="0", python="", spec=spec)
    train_in(TrainTask(create_run(header), spec, Change(), StopRequest()), lambda: loaded)
    profiled_here(experiment)
    assert len(keys) == 2 and len(set(keys)) == 1


def test_proof_of_a_change_is_on_top_of_what_a_search_has_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = written(tmp_path)
    # As many as this process has, whose search it is.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    keep_search(experiment, {"micro_batch_size": 4})
    compared: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def measure(python: str, spec: ExperimentSpec, changes: dict[str, Any]) -> Interval:
        compared.append((spec.fixed, changes))
        return Interval(middle=2.0, low=1.9, high=2.1)

    monkeypatch.setattr("flatout.runs.profile.measured_speedup", measure)
    report = command_of(experiment, is_proved=True)
    assert any(one.measured is not None for one in report.advice)
    assert [fixed["micro_batch_size"] for fixed, _ in compared] == [4] * len(compared)


def test_layers_have_their_names_and_the_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(nn.ReLU(), nn.Linear(64, 8)))
    inputs = torch.randn(32, 64)
    with (
        torch.profiler.profile(record_shapes=True, profile_memory=True) as profiler,
        recorded_layers(model),
    ):
        mark(BEGIN)
        for _ in range(2):
            model(inputs).square().mean().backward()
            mark("step")
    steps = MeasuredSteps(step_s=(1e-3,), profiled_s=1.2e-3, num_profiled=2)
    report = profile_report(trace_events(profiler), steps)
    layers = {row.name: row for row in report.layers}
    assert {"0", "1.0", "1.1"} <= set(layers)
    assert layers["0"].calls == 1
    products = [row for row in report.operators if row.name == "aten::mm"]
    assert products and products[0].dtype == "float"
    use = memory_use(profiler, {"weights": 100})
    assert use.peak_bytes is not None and use.peak_bytes > 100
    assert any("(backward)" in one.name or one.name in layers for one in use.at_peak)


def test_layers_of_any_model_are_named_by_its_class() -> None:
    with torch.profiler.profile() as profiler, recorded_layers():
        mark(BEGIN)
        nn.Sequential(nn.Linear(4, 4))(torch.randn(2, 4))
        mark("step")
    steps = MeasuredSteps(step_s=(1e-3,), profiled_s=1e-3, num_profiled=1)
    names = {row.name for row in profile_report(trace_events(profiler), steps).layers}
    assert "Sequential.0" in names


def test_padding_is_what_rows_are_filled_up_with() -> None:
    rows = torch.tensor([[5, 6, 7, 0, 0, 0, 0, 0], [5, 6, 7, 8, 9, 1, 0, 0]])
    # One at the end of each may be the end of a text.
    assert padding_of(rows) == pytest.approx((4 + 1) / 2 / 8)
    assert padding_of(torch.arange(32).reshape(2, 16)) == 0.0
    assert padding_of(torch.randn(4, 16)) is None
    assert cut({"rows": rows, "label": torch.ones(2)}, 0.5)["rows"].shape == (2, 4)


def test_batch_is_repeated_only_when_each_tensor_has_a_row_for_each_sample() -> None:
    assert repeated((torch.ones(4, 2), torch.ones(4)), 4, 3)[0].shape == (12, 2)
    with pytest.raises(ValueError, match="row for each sample"):
        repeated((torch.ones(4, 2), torch.ones(3)), 4, 3)


@pytest.mark.timing
def test_no_more_samples_are_kept_than_a_step_has() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Images:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> Any:
            nonlocal most
            sample = torch.full((8,), index)
            alive.add(sample)
            most = max(most, len(alive))
            time.sleep(0.001)
            return sample

    session: Any = SimpleNamespace(
        train_data=Images(),
        recipe=SimpleNamespace(loader_workers=SimpleNamespace(value=0)),
        experiment=SimpleNamespace(collate=torch.stack),
        facts=SimpleNamespace(num_cores=2),
        device=torch.device("cpu"),
    )

    def measured_s() -> float:
        probes, lines, _ = data_probes(session, 0.02, 16)
        assert most <= 18
        assert len(probes) == 2
        return sum(line.seconds for line in lines)

    # Of a step's samples, not of all that were read.
    assert 0.016 < first_good(measured_s, lambda seconds: seconds < 0.1) < 0.1
