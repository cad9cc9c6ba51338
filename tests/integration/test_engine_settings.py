"""What torch has once per process: precisions, cuDNN's search, and which GPU is meant."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import flatout.engine
from flatout.engine import Experiment
from flatout.engine.model.precision import (
    matmul_precision,
    restored_fp32_settings,
    set_matmul_precision,
)
from flatout.engine.predict import predictor
from flatout.engine.predict.predictor import load
from flatout.engine.recipe.default_recipe import changed_recipe, chosen_recipe
from flatout.engine.recipe.experiment_facts import restored_device
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runtime.device import use_device
from flatout.engine.runtime.step_timer import Losses
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.session import build, process_settings
from flatout.engine.tuner import driver
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.errors import FlatoutError, UsageError
from flatout.schema.run_lines import Finished
from flatout.schema.tuning import TuneRequest

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"),
    reason=f"torch {torch.__version__} has no settings by operation",
)
@pytest.mark.parametrize(
    "place",
    ["cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", ""],
)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_precision_set_by_operation_is_overridden_and_put_back(place: str, precision: Any) -> None:
    setting: Any = operator.attrgetter(place)(torch.backends) if place else torch.backends
    # What both of torch's ways say, or that they contradict each other.
    before = fp32_settings()
    with restored_fp32_settings():
        setting.fp32_precision = "tf32" if place != "mkldnn.matmul" else "bf16"
        set_by_person = fp32_settings()
        with restored_fp32_settings():
            set_matmul_precision(precision)
            is_tf32 = precision == "tf32"
            assert matmul_precision() == torch.get_float32_matmul_precision()
            assert torch.backends.cuda.matmul.allow_tf32 is is_tf32
            assert torch.backends.cudnn.allow_tf32 is is_tf32
        assert fp32_settings() == set_by_person
    assert fp32_settings() == before


def fp32_settings() -> list[Any]:
    backends: Any = torch.backends
    places = [backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv]
    places += [backends.cudnn.rnn, backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv]
    found = [place.fp32_precision for place in places]
    for ask in (torch.get_float32_matmul_precision, lambda: backends.cudnn.allow_tf32):
        try:
            found.append(ask())
        except RuntimeError:
            found.append("contradicted")
    return found


def test_run_of_an_experiment_that_sets_precision_by_operation(
    lab: Lab, tell: Tell, plain: Plain
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with restored_fp32_settings():
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        folder = lab.run(plain(loss=loss))
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert tell.events(folder, Finished)


def flags() -> list[Any]:
    return [torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark,
            torch.get_float32_matmul_precision()]  # fmt: skip


def test_plain_loop_and_plain_recipe_have_the_same_settings(plain: Plain) -> None:
    before = flags()
    contestants = CandidateBuilder(
        TuningTask(experiment=plain(validation_data=None), device_name="cpu")
    )
    with contestants.plain().settings():
        of_the_loop = flags()
    with process_settings(contestants.plain_recipe()):
        of_the_recipe = flags()
    assert of_the_loop == of_the_recipe == [False, False, "highest"]
    assert flags() == before


def test_benchmark_is_on_for_a_gpu_that_need_not_repeat(plain: Plain) -> None:
    facts = build(plain(), 0, "cpu").facts
    on_gpu = dataclasses.replace(facts, device=torch.device("cuda", 0), free_device_bytes=2**30)
    assert not chosen_recipe(facts, {}).benchmark.value
    recipe = chosen_recipe(on_gpu, {})
    assert recipe.benchmark.value
    assert not chosen_recipe(on_gpu, {"deterministic": True}).benchmark.value
    # A resume that asks for bits that repeat asks for this, too.
    assert not changed_recipe(recipe, {"deterministic": True}).benchmark.value
    assert not changed_recipe(recipe, {"benchmark": False}).benchmark.value
    with pytest.raises(UsageError, match="recipe-does-not-fit"):
        check_recipe(chosen_recipe(on_gpu, {"deterministic": True, "benchmark": True}), on_gpu)
    [finding] = check_recipe(
        chosen_recipe(facts, {"benchmark": True, "deterministic": False}), facts
    )
    assert finding.rule == "setting-without-effect" and "benchmark" in finding.problem


def test_gpu_that_is_chosen_is_the_one_that_torch_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [0]
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: used.append(_number(device)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: used[-1])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with restored_device():
        use_device(torch.device("cuda", 1))
        assert used[-1] == 1
        use_device(torch.device("cpu"))
        assert used[-1] == 1
    assert used == [0, 1, 0]


def test_search_leaves_the_gpu_that_torch_uses(
    monkeypatch: pytest.MonkeyPatch, plain: Plain
) -> None:
    used = [0]
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: used.append(_number(device)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: used[-1])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    def searched(search: driver.Search) -> None:
        use_device(torch.device("cuda", 1))

    monkeypatch.setattr(driver, "_tuned_recipe", searched)
    search = driver.Search(
        subject=TuningTask(experiment=plain(), device_name="cpu"),
        options=TuneRequest(), num_steps=None, request=StopRequest(), on_event=lambda line: None,
        folder=None,
    )  # fmt: skip
    driver.tuned_recipe(search)
    assert used == [0, 1, 0]


def test_predictions_are_made_on_the_gpu_that_is_chosen(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, plain: Plain
) -> None:
    used, seen = [0], []

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            used.append(_number(self.device))

        def __exit__(self, *_: object) -> None:
            used.append(0)

    def predict(model: nn.Module, batch: Tensor) -> Tensor:
        seen.append(used[-1])
        predicted: Tensor = model(batch)
        return predicted

    experiment = plain(predict=predict, epochs=1)
    loaded = load(lab.run(experiment).path, experiment=experiment)
    monkeypatch.setattr(torch.cuda, "device", Device)
    # There is no GPU to place the batch on.
    monkeypatch.setattr("flatout.engine.predict.predictor.placer", lambda *_: None)
    on_second = dataclasses.replace(loaded, device=torch.device("cuda", 1))
    assert len(on_second.predict(torch.zeros(3, 6))) == 3
    assert seen == [1] and used == [0, 1, 0]


@pytest.mark.parametrize("verb", ["train", "tune", "load", "lr_range", "dry_run"])
@pytest.mark.parametrize("is_used", [False, True])
def test_cublas_is_prepared_before_a_notebook_uses_a_gpu(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, plain: Plain, verb: str, is_used: bool
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_used)
    for name, value in (("current_device", 0), ("set_device", None), ("empty_cache", None)):
        monkeypatch.setattr(torch.cuda, name, functools.partial(_given, value))
    given = "no-such-run" if verb == "load" else plain(model=no_model)
    with pytest.raises(FlatoutError):
        getattr(flatout.engine, verb)(given)
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is not is_used


def _given(value: Any, *_: Any) -> Any:
    return value


def no_model() -> nn.Module:
    raise ValueError("as soon as anything is built")


def test_bits_that_a_process_cannot_repeat_are_not_promised(
    monkeypatch: pytest.MonkeyPatch, plain: Plain
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    recipe = build(plain(), 0, "cpu").recipe({"device": "cuda:0", "deterministic": True})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    here, [finding] = predictor._recipe_here(recipe, {})
    assert not here.deterministic.value and finding.rule == "other-than-in-the-run"
    with pytest.raises(UsageError, match="recipe-does-not-fit"):
        predictor._recipe_here(recipe, {"deterministic": True})
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert predictor._recipe_here(recipe, {})[0].deterministic.value


def _number(device: Any) -> int:
    return device.index if isinstance(device, torch.device) else device


def test_losses_are_waited_for_on_the_stream_that_copies_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[Any] = []

    class Event:
        def record(self, stream: Any = None) -> None:
            recorded.append(stream)

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            pass

    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    losses = Losses(torch.device("cuda", 1))
    losses.add(torch.tensor(0.5), 8)
    assert losses.take() == [(0.5, 8)]
    assert recorded == ["stream of cuda:1"]
