"""Steps whose forward pass and loss are compiled: exactness, failures, memory, proofs.

Models are small, since compiling takes seconds whatever is compiled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
import torch
from support.oom_injection import SAID
from torch import Tensor, nn

from flatout.cli.render.wording import adaptation_text
from flatout.engine.experiment import Experiment
from flatout.engine.gate import GateSubject as Judged
from flatout.engine.gate import Maker, judge
from flatout.engine.gate.fixtures import changed
from flatout.engine.gate.runs import begin
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.compiled import check_shapes, compilers
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.step.compiled_loss import StepLoss, why_not_compiled
from flatout.engine.step.step import EagerStep
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.compile_trial_process import CompileTrialRequest, measured_in_child
from flatout.engine.tuner.trial_process import Terms, TrialContext
from flatout.engine.tuner.trials import Trials
from flatout.errors import RunFailed, UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.recipe import Choice
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import RecipeSet
from flatout.schema.tuning import Candidate, Result, Trial
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

pytestmark = pytest.mark.skipif(
    why_not_compiled(torch.device("cpu")) is not None, reason="needs a C++ compiler"
)

COMPILED = {"compiled": "loss", "num_threads": 1}


def loss(model: Any, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def undecided_loss(model: Any, batch: Any) -> Tensor:
    value = loss(model, batch)
    # Which of the two is computed depends on numbers: no graph can hold it.
    return value * 2 if float(value) > 1e6 else value


def data() -> Any:
    dice = torch.Generator().manual_seed(0)
    return torch.randn(40, 12, generator=dice), torch.randn(40, 1, generator=dice)


def experiment(**fields: Any) -> Experiment:
    given: dict[str, Any] = {
        "model": lambda: nn.Sequential(
            nn.Linear(12, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1)
        ),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        "loss": loss,
        "train_data": data,
        # The last batch of an epoch is half of one.
        "batch_size": 16,
        "epochs": 2,
    }
    return Experiment(**(given | fields))


def session_of(asked: Experiment, **use: Any) -> tuple[Session, Any]:
    built = build(asked, 0, "cpu")
    recipe = built.recipe(COMPILED | use)
    return Session(built, recipe), recipe


def test_a_compiled_run_that_was_stopped_ends_as_one_that_was_not(lab: Lab, tell: Tell) -> None:
    whole = lab.run(experiment(), **COMPILED)
    parts = lab.new(**COMPILED)
    # Within an epoch, before its half batch; and once more, in the second.
    lab.go_on(parts, experiment(), stop_after=1)
    lab.go_on(parts, experiment())
    assert tell.traces(parts) == tell.traces(whole)


def test_dropout_has_the_masks_of_the_uncompiled_step() -> None:
    asked = experiment(ema=0.9, clip_norm=0.5)
    losses = {}
    for compiled in ("off", "loss"):
        session, recipe = session_of(asked, compiled=compiled)
        with process_settings(recipe):
            step = EagerStep(session.step_parts(), StepTimer(session.device))
            updates = list(session.feed.updates(0, 0))
            losses[compiled] = [float(step.run(update)) for update in updates]
        if compiled == "loss":
            (compiler,) = compilers(session)
            # The last batch is half of one: computed as it is written, not compiled again.
            assert compiler.num_graphs == 1 and compiler.num_calls == len(updates) - 1
    assert losses["loss"] == pytest.approx(losses["off"], rel=1e-5)


def test_a_loss_that_cannot_be_compiled_trains_uncompiled_and_says_so(lab: Lab, tell: Tell) -> None:
    undecided = experiment(loss=undecided_loss)
    folder = lab.new()
    held = build(undecided, 0, "cpu").recipe({"num_threads": 1})
    # As a search has left it: nobody has asked for it.
    compiled = msgspec.structs.replace(held, compiled=Choice(value="loss", why="measured"))
    folder.path.mkdir(exist_ok=True)
    lines = atomic_files.Lines(folder.events)
    lines.append(RecipeSet(at=0.0, step=0, recipe=compiled), is_synced=True)
    lines.close()
    lab.go_on(folder, undecided)
    (adaptation,) = read_run(folder).adaptations
    assert adaptation.kind == "uncompiled" and adaptation.step == 1 and adaptation.is_in_place
    assert "data-dependent" in str(adaptation.because)
    assert "nothing is compiled" in adaptation_text(adaptation)
    # And what was drawn by then was put back.
    assert tell.traces(folder)["weights"] == tell.traces(lab.run(undecided))["weights"]


def test_who_asks_for_what_cannot_be_compiled_is_reported(lab: Lab, tell: Tell) -> None:
    folder = lab.new(**COMPILED)
    with pytest.raises(RunFailed) as caught:
        lab.go_on(folder, experiment(loss=undecided_loss))
    assert caught.value.rule == "compiling-failed"
    assert tell.failure(folder).rule == "compiling-failed"


def test_an_own_step_is_not_compiled() -> None:
    asked = experiment(loss=None, step=lambda updates, model, batch: {})
    built = build(asked, 0, "cpu")
    with pytest.raises(UsageError) as caught:
        check_recipe(built.recipe(COMPILED), built.facts)
    assert caught.value.rule == "recipe-does-not-fit"


def test_where_there_is_no_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    built = build(experiment(), 0, "cpu")
    with pytest.raises(UsageError) as caught:
        check_recipe(built.recipe(COMPILED), built.facts)
    assert "no C++ compiler" in str(caught.value.because)


def test_when_memory_runs_out_smaller_micro_batches_are_compiled(lab: Lab) -> None:
    calls = 0

    def short(model: Any, batch: Any) -> Tensor:
        return loss(model, batch)

    asked = experiment(loss=short)
    folder = lab.new(compiled="loss", checkpoint_every=1000)
    original = StepLoss.__call__

    def refusing(self: StepLoss, model: Any, batch: Any, size: int) -> Any:
        nonlocal calls
        calls += 1
        value = original(self, model, batch, size)
        if calls == 3:
            raise RuntimeError(SAID)
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepLoss, "__call__", refusing)
        lab.go_on(folder, asked)
    (adaptation,) = read_run(folder).adaptations
    assert adaptation.kind == "smaller" and adaptation.after == 8
    recipe = read_run(folder).recipe
    assert recipe is not None and recipe.compiled.value == "loss"


def test_batches_of_many_shapes_are_not_compiled() -> None:
    def shrinking(samples: list[Any]) -> Any:
        inputs, targets = (torch.stack(list(column)) for column in zip(*samples, strict=True))
        return inputs[:, : 4 + int(inputs[0, 0] > 0)], targets

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            return torch.full((12,), float(index % 3) - 1), torch.zeros(1)

    asked = experiment(train_data=Rows, collate=shrinking, shuffle=False, batch_size=2)
    session, _ = session_of(asked, loader_workers=0)
    with pytest.raises(UsageError) as caught:
        check_shapes(session)
    assert caught.value.rule == "recipe-does-not-fit"


@pytest.fixture(scope="module")
def verdicts() -> Callable[..., Any]:
    def verdict(asked: Experiment, maker: Maker | None = None, **use: Any) -> Any:
        plain = build(asked, 0, "cpu").recipe({"num_threads": 1})
        candidate = changed(plain, **(COMPILED | use))
        subject = Judged(experiment=asked, device="cpu", maker=maker or Maker())
        return judge(subject, candidate, plain)

    return verdict


def test_the_gate_compares_what_is_compiled_with_what_is_written(verdicts: Any) -> None:
    verdict = verdicts(experiment(ema=0.9))
    assert verdict.is_passed, verdict.failed
    assert {"gradients", "masks", "inputs", "loss curve"} <= {c.name for c in verdict.checks}


def test_the_gate_finds_dropout_that_is_not_torchs(verdicts: Any) -> None:
    """Compiled code that draws by itself, as torch's compiler does if it is not told."""

    def begin_own(asked: Experiment, seed: int, device: str, recipe: Any) -> Session:
        session = begin(asked, seed, device, recipe)

        def dropping_more(model: Any, batch: Any, size: int) -> Any:
            torch.rand(())
            return original(model, batch, size)

        if session.loss is not None and session.loss.compiler is not None:
            original = session.loss.__call__
            parts = session.step_parts
            session.step_parts = lambda: dataclasses.replace(parts(), loss=dropping_more)  # type: ignore
        return session

    verdict = verdicts(experiment(), Maker(begin=begin_own))
    assert {check.name for check in verdict.failed} & {"gradients", "masks"}


def test_the_gate_finds_code_that_was_not_run(verdicts: Any) -> None:
    def begin_eager(asked: Experiment, seed: int, device: str, recipe: Any) -> Session:
        session = begin(asked, seed, device, recipe)
        assert session.loss is not None
        session.loss._compiled = None
        return session

    verdict = verdicts(experiment(), Maker(begin=begin_eager))
    assert [check.name for check in verdict.failed] == ["compiled"]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    ],
    ids=["AdamW", "SGD"],
)
def test_a_compiled_optimizer_follows_its_schedule(verdicts: Any, optimizer: Any) -> None:
    verdict = verdicts(experiment(optimizer=optimizer), compiled="optimizer")
    assert verdict.is_passed, verdict.failed


def test_a_run_with_a_compiled_optimizer_is_resumed_exactly(lab: Lab, tell: Tell) -> None:
    use = {"num_threads": 1, "compiled": "optimizer", "optimizer_implementation": "own"}
    asked = experiment(schedule=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5))
    whole = lab.run(asked, **use)
    parts = lab.new(**use)
    lab.go_on(parts, asked, stop_after=2)
    lab.go_on(parts, asked)
    assert tell.traces(parts) == tell.traces(whole)
    kept = tell.state(whole)["optimizer"]
    assert isinstance(kept["param_groups"][0]["lr"], float)
    assert kept["state"][0]["step"].dtype == torch.float32


def test_a_trial_says_what_compiling_took() -> None:
    trials = Trials(TuningTask(experiment=experiment(), device_name="cpu"))
    changes = {"compiled": "both"}
    candidate = Candidate(
        name="compiled", axis="compiling", changes=changes, why="", is_compiled=True
    )
    trial = Trial(stage="screen", candidate=candidate, incumbent={}, changes=changes)
    result = trials.measured(trial, 0.2)
    assert result.problem is None
    assert result.effect == "2 graphs compiled and run"
    assert result.compile_s is not None and result.compile_s > 0.1


def test_what_cannot_be_compiled_has_lost_with_the_reason() -> None:
    trials = Trials(TuningTask(experiment=experiment(loss=undecided_loss), device_name="cpu"))
    candidate = Candidate(
        name="compiled", axis="compiling", changes={"compiled": "loss"}, why="", is_compiled=True
    )
    trial = Trial(stage="screen", candidate=candidate, incumbent={}, changes={"compiled": "loss"})
    result = trials.measured(trial, 0.2)
    assert result.problem is not None and result.problem.rule == "compiling-failed"


FILE = """
import flatout
import torch

def loss(model, batch):
    return model(batch[0]).square().mean()

def experiment():
    return flatout.Experiment(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Linear(16, 1)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        loss=loss,
        train_data=lambda: (torch.ones(64, 12),),
        batch_size=16,
        epochs=1,
    )
"""


def asked_beside(folder: Path, deadline_s: float, text: str = FILE) -> tuple[Trial, TrialContext]:
    """The trial of a compiled candidate in a fresh process."""
    file = folder / "small.py"
    file.write_text(text, encoding="utf-8")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    header = RunHeader(
        id="x", created_at=0.0, flatout_version="0", python="",
        spec=ExperimentSpec(name="small", file=str(file), sha256=digest),
    )  # fmt: skip
    atomic_files.write_json(RunFolder(folder).header, header)
    candidate = Candidate(
        name="compiled", axis="compiling", changes={"compiled": "loss"}, why="", is_compiled=True
    )
    trial = Trial(
        stage="screen", candidate=candidate, incumbent={"num_threads": 1},
        changes={"num_threads": 1, "compiled": "loss"}, deadline_s=deadline_s,
    )  # fmt: skip
    surroundings = TrialContext(
        folder=folder, usual_s=5.0, terms=Terms(device_name="cpu", fixed={}), request=StopRequest()
    )
    return trial, surroundings


def beside(folder: Path, deadline_s: float) -> Result:
    trial, surroundings = asked_beside(folder, deadline_s)
    return measured_in_child(trial, 0.2, surroundings)


def test_candidate_and_incumbent_are_measured_in_one_fresh_process(tmp_path: Path) -> None:
    result = beside(tmp_path, 300.0)
    assert result.problem is None and result.speedup is not None
    assert result.compile_s is not None and result.compile_s > 0.1
    assert result.effect == "1 graph compiled and run"


def test_what_takes_longer_than_its_deadline_has_lost(tmp_path: Path) -> None:
    # Such as processes that have loaded torch for other tests.
    before = set(psutil.Process().children(recursive=True))
    result = beside(tmp_path, 1.0)
    assert result.problem is not None and result.problem.rule == "trial-died"
    assert "within 1 s" in result.problem.problem and result.cost_s < 30
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_trial_whose_worker_is_gone_ends(tmp_path: Path) -> None:
    here = tmp_path / "here"
    waiting = f"import pathlib, time\npathlib.Path({str(here)!r}).touch()\ntime.sleep(600)\n"
    trial, surroundings = asked_beside(tmp_path, 300.0, FILE + waiting)
    request = CompileTrialRequest(trial=trial, limit_s=0.2, terms=surroundings.terms)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "flatout.engine.tuner.compile_trial_process", str(tmp_path)],
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(request) + b"\n")
        process.stdin.flush()
        while not here.exists() and process.poll() is None:
            time.sleep(0.05)
        process.stdin.close()
        assert process.wait(120) == 1
    finally:
        process.kill()
