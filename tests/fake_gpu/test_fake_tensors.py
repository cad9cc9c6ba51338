"""Every experiment makes training steps with fake CUDA tensors, under every recipe of a search.

What this proves: no tensor of a step sits on another device than the step's, and nothing within a
step waits for it: by asking it for a value (`.item()`, `bool(tensor)`, `nonzero`), or by a copy
that is not asked for as `non_blocking` (`torch.tensor(..., device="cuda")`). It needs no build of
torch for CUDA: no kernel runs with either build.

What it does not prove: nothing is said about values, memory, speed, or whether a GPU has a kernel
for these strides and formats, or whether memory is pinned. Torch's own loss scaler waits to hear
whether a gradient overflowed: with fp16 and an optimizer that is not fused, and nowhere else. Of
steps in graphs, what is recorded is made with the tensors from which a graph reads; whether CUDA
records it is not seen. Not looked at: recipes that compile, how loaders read, attention kernels
other than the one by matrix products (torch chooses them by asking the GPU), and 8-bit products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fake_gpu import (  # noqa: E402
    FakeGpu,
    NoAddresses,
    ReadReally,
    RepeatedGraphs,
    WaitingCopy,
    fake_gpu,
    with_real_reading,
)
from torch._subclasses.fake_tensor import DataDependentOutputException  # noqa: E402

from flatout.engine.data import normalized  # noqa: E402
from flatout.engine.experiment import Experiment  # noqa: E402
from flatout.engine.feed.feed import TensorFeed  # noqa: E402
from flatout.engine.session.load_experiment import load_experiment  # noqa: E402
from flatout.engine.step import captured_step  # noqa: E402
from flatout.engine.step.captured_step import NUM_WARM_UPS  # noqa: E402
from flatout.engine.tensors import host_copies  # noqa: E402
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask  # noqa: E402
from flatout.runs.experiment_source import built_in_names  # noqa: E402
from flatout.schema.experiment_spec import ExperimentSpec  # noqa: E402
from flatout.schema.recipe import Recipe  # noqa: E402
from flatout.schema.tuning import Profile, Setting  # noqa: E402
from flatout.tune.candidates import candidates  # noqa: E402

ZOO = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "zoo").glob("*.py"))
# The optimizer's state is made in the first update, and used in the second.
NUM_UPDATES = 2
# Warm-ups, two launches of two, and one that is launched alone; some are no whole batches.
NUM_CAPTURED = NUM_WARM_UPS + 2 * 2 + 2
BATCH_SIZE = 8

_PROFILE = Profile(
    step_s=0.1,
    start_s=1.0,
    shares={"data": 0.1, "forward": 0.3, "backward": 0.4, "optimizer": 0.2},
    num_operations=1000,
    has_convolutions=True,
    has_products=True,
    has_attention=True,
    host_share=0.9,
)
# Packages that flatout does not bring along, in which some models are written.
_NEEDING = {"bert-large": "transformers", "gpt3-small": "transformers"}
# Models whose own code asks for values of each batch: their steps wait, whatever the recipe.
_ASKING = {"branching_depth"}
# Of few steps, no two may have batches of one shape, as a graph needs them.
_UNEQUAL = {"unequal_lengths"}
# Not of the step, or not to be had without a GPU.
_LEFT_OUT = {"compiled", "data_path", "loader_workers", "loader_pin_memory"}
_PLAIN_READING = {"loader_workers": 0, "loader_pin_memory": False, "loader_persistent": False}


def recipes(setting: Setting) -> Iterator[dict[str, Any]]:
    """What a search can come to: each candidate alone and with each precision, and with a precision
    what may have won on all other axes.
    """
    every, _ = candidates(setting, _PROFILE, "fast")
    tried = tuple(one for one in every if not {*_LEFT_OUT, "capture"} & one.changes.keys())
    alone = [one.changes for one in tried]
    if setting.has_blocks:
        # What a step is given where its memory is short.
        alone.append({"activation_checkpointing": True})
    precisions = [one for one in alone if "precision" in one]
    others = [one for one in alone if "precision" not in one]
    yield {}
    yield from precisions
    yield from others
    yield from ({**one, **other} for one in precisions for other in others)
    won: dict[str, Any] = {"activation_checkpointing": True} if setting.has_blocks else {}
    of_axis = {one.axis: one.changes for one in reversed(tried) if "precision" not in one.changes}
    for changes in of_axis.values():
        won |= changes
    yield from ({**won, **one} for one in ({}, *precisions))
    if any("capture" in one.changes for one in every):
        forms = setting.forms_to_capture
        form = "fused" if "fused" in forms else forms[0]
        graph = {"capture": "step", "steps_per_launch": 2, "optimizer_implementation": form}
        # A scaler decides on the GPU only if the optimizer is fused.
        yield from (
            {**graph, **one}
            for one in ({}, *precisions)
            if form == "fused" or one.get("precision") != "fp16"
        )


def test_step_that_asks_for_a_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def asking(model: Any, batch: Any) -> Any:
        loss = model(batch[0]).mean()
        return loss if loss.item() > 0 else -loss

    with fake_gpu(monkeypatch) as gpu, pytest.raises(DataDependentOutputException):
        _make_steps(gpu, _contestants_of(asking), {})


def test_step_that_mixes_devices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.ones(1, 4)

    def mixing(model: Any, batch: Any) -> Any:
        return (model(batch[0]) * weights).mean()

    with fake_gpu(monkeypatch) as gpu, pytest.raises(Exception, match="two (different )?devices"):
        _make_steps(gpu, _contestants_of(mixing), {})


def test_step_that_copies_a_number_to_the_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def copying(model: Any, batch: Any) -> Any:
        weights = torch.tensor([0.5, 2.0, 1.0, 1.0], device=batch[0].device)
        return (model(batch[0]) * weights).mean()

    with fake_gpu(monkeypatch) as gpu, pytest.raises(WaitingCopy):
        _make_steps(gpu, _contestants_of(copying), {})


def test_pictures_are_normalized_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def normalizing(model: Any, batch: Any) -> Any:
        pictures = batch[0].view(-1, 1, 2, 2).to(torch.uint8)
        return model(normalized(pictures, [0.5], [0.25]).flatten(1)).mean()

    with fake_gpu(monkeypatch) as gpu:
        _make_steps(gpu, _contestants_of(normalizing), {})


def test_small_tensors_leave_the_gpu_through_pinned_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[list[Any]] = []
    monkeypatch.setattr(host_copies, "through_pinned", sent.append)
    with fake_gpu(monkeypatch):
        tensors = [torch.ones(3, device="cuda"), torch.ones((), device="cuda")]
        pairs = [(host_copies.empty_on_host(tensor), tensor) for tensor in tensors]
        host_copies.fill_on_host(pairs)
    assert sent == [pairs]
    assert [copy.device.type for copy, _ in pairs] == ["cpu", "cpu"]


def _contestants_of(loss: Any) -> CandidateBuilder:
    experiment = Experiment(
        model=lambda: torch.nn.Linear(4, 4),
        optimizer=torch.optim.AdamW,
        loss=loss,
        train_data=lambda: (torch.ones(16, 4), torch.ones(16)),
        batch_size=8,
        epochs=1,
    )
    return CandidateBuilder(
        TuningTask(experiment=with_real_reading(experiment), device_name="cuda")
    )


@pytest.mark.parametrize(
    "name", [*built_in_names(), *ZOO], ids=lambda one: getattr(one, "stem", one)
)
def test_experiment_makes_its_steps_with_fake_cuda_tensors_under_every_recipe(
    name: str | Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setattr(captured_step, "_TensorAddresses", NoAddresses)
    spec = ExperimentSpec(name=name) if isinstance(name, str) else _spec_of(name)
    experiment = load_experiment(spec)
    if spec.name in _NEEDING:
        pytest.importorskip(_NEEDING[spec.name])
    is_alike = spec.name not in _UNEQUAL
    with fake_gpu(monkeypatch) as gpu:
        problems = _problems_under_every_recipe(experiment, gpu, is_alike=is_alike)
    if spec.name in _ASKING:
        assert problems and all(DataDependentOutputException.__name__ in one for one in problems)
    else:
        assert not problems, "\n".join(problems)


def _spec_of(file: Path) -> ExperimentSpec:
    return ExperimentSpec(name=file.stem, file=str(file))


def _problems_under_every_recipe(
    experiment: Experiment, gpu: FakeGpu, *, is_alike: bool
) -> list[str]:
    experiment = with_real_reading(_small(experiment))
    contestants = CandidateBuilder(TuningTask(experiment=experiment, device_name="cuda"))
    problems = []
    for changes in recipes(contestants.setting):
        try:
            before = gpu.num_scaler_waits
            recipe = _make_steps(gpu, contestants, changes, is_alike=is_alike)
            has_waited = gpu.num_scaler_waits > before
            if has_waited != _is_scaler_waiting(recipe):
                problems.append(f"{changes}: the loss scaler waits: {has_waited}")
        except Exception as error:  # noqa: BLE001 - each recipe's is told
            problems.append(f"{changes}: {type(error).__name__}: {error}")
    return problems


def _small(experiment: Experiment) -> Experiment:
    return dataclasses.replace(experiment, batch_size=min(BATCH_SIZE, experiment.batch_size))


def _is_scaler_waiting(recipe: Recipe) -> bool:
    """Whether torch's loss scaler has to ask the GPU, under a recipe, if a step is made."""
    return recipe.precision.value == "fp16" and recipe.optimizer_implementation.value != "fused"


def _make_steps(
    gpu: FakeGpu, contestants: CandidateBuilder, changes: dict[str, Any], *, is_alike: bool = True
) -> Recipe:
    session = contestants.session({"attention": "math", **changes, **_PLAIN_READING})
    if not isinstance(session.feed, TensorFeed) or session.recipe.data_path.value != "resident":
        session.feed = ReadReally(session.feed)  # type: ignore[assignment]
    is_captured = session.recipe.capture.value == "step"
    if is_captured:
        session.graphs = RepeatedGraphs()
    contestant = contestants.contestant(session)
    runner: Any = contestant.runner
    with contestant.settings(), gpu.watched():
        runner.run(NUM_CAPTURED if is_captured else NUM_UPDATES)
    runner.close()
    if is_captured:
        assert runner.step.num_replayed or not is_alike, "no graph was launched"
    for one in session.model.parameters():
        assert one.device == torch.device("cuda:0")
    return session.recipe
