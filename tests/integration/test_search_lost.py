"""A search in which the capture of a CUDA graph broke does not use its process again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.recorded_graphs import RecordedGraphs

from flatout.engine.recipe import recipe_checks
from flatout.engine.runtime.error_map import CaptureBroken
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session import session
from flatout.engine.tuner import driver
from flatout.engine.tuner.candidate_builder import TuningTask
from flatout.engine.tuner.compile_trial_process import judged_in_child
from flatout.engine.tuner.driver import Search, _last_probe, _run_trial, _SearchState
from flatout.engine.tuner.trial_process import Terms, TrialContext
from flatout.engine.tuner.trials import Trials
from flatout.errors import RunFailed
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.schema.tuning import (
    Candidate,
    Check,
    Decision,
    GateVerdict,
    Interval,
    Profile,
    Result,
    Rung,
    Trial,
    TuneRequest,
)
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder
from flatout.tune.problem import Problem

EXPERIMENT = """
import torch
import flatout

def experiment():
    return flatout.Experiment(
        model=lambda: torch.nn.Linear(8, 4),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]),
        train_data=lambda: (torch.ones(64, 8), torch.zeros(64, 4)),
        batch_size=16,
        epochs=1,
    )
"""
DEFAULTS = {"num_threads": 1}
CAPTURED = {**DEFAULTS, "capture": "step", "optimizer_implementation": "fused"}
PROFILE = Profile(
    step_s=0.001, start_s=1.0, shares={}, num_operations=10, has_convolutions=False,
    has_products=True, has_attention=False,
)  # fmt: skip
FASTER = Interval(low=1.4, middle=1.5, high=1.6)


class Unended(RecordedGraphs):
    """Graphs whose recording fails, and cannot be ended either."""

    def recorded(self, action: Callable[[], object]) -> Any:
        raise CaptureBroken("operation not permitted when stream is capturing")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run; in this process every capture breaks, on a CPU, too."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(session, "graphs_on", lambda device: Unended())
    monkeypatch.setattr(recipe_checks, "why_not_captured", lambda *args: None)
    file = tmp_path / "lost_search.py"
    file.write_text(EXPERIMENT)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    spec = ExperimentSpec(name="small", file=str(file), sha256=digest)
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    atomic_files.write_json(RunFolder(tmp_path).header, header)
    return tmp_path


def contest_here() -> Trials:
    """Of the experiment in that file."""
    names: dict[str, Any] = {}
    exec(EXPERIMENT, names)
    return Trials(TuningTask(experiment=names["experiment"](), device_name="cpu"))


def trial_of(changes: dict[str, Any], **fields: Any) -> Trial:
    candidate = Candidate(name="tried", axis="capture", changes=changes, why="")
    return Trial(stage="screen", candidate=candidate, incumbent=DEFAULTS, changes=changes, **fields)


def left_of(trials: Trials, folder: Path | None, lost: list[Any] | None) -> _SearchState:
    base = Candidate(name="base", axis="loop", changes=DEFAULTS, why="")
    problem = Problem(
        base=base, candidates=(), skipped=(), profile=PROFILE, budget_s=60.0, batch_size=16,
        can_start=True,
    )  # fmt: skip
    search = Search(
        subject=trials.builder.subject, options=TuneRequest(mode="full"), num_steps=None,
        request=StopRequest(), on_event=lambda line: None, folder=folder,
        lose=lost.append if lost is not None else None,
    )  # fmt: skip
    return _SearchState(search, problem, math.inf)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """What was given to other processes, which find it faster and right."""
    given: list[Trial] = []

    def measured(trial: Trial, limit_s: float, surroundings: TrialContext) -> Result:
        given.append(trial)
        return Result(trial=trial, cost_s=1.0, speedup=FASTER)

    def judged(trial: Trial, surroundings: TrialContext) -> GateVerdict:
        given.append(trial)
        return GateVerdict(checks=(Check(name="gate", is_passed=True),))

    monkeypatch.setattr(driver, "measured_in_child", measured)
    monkeypatch.setattr(driver, "measured_in_fresh_processes", measured)
    monkeypatch.setattr(driver, "judged_in_child", judged)
    return given


def test_after_a_broken_capture_others_are_measured_and_judged_elsewhere(
    folder: Path, beside: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, lost = contest_here(), []
    state = left_of(trials, folder, lost)
    result = _run_trial(trial_of(CAPTURED), trials, state)
    assert result.problem is not None and result.problem.rule == "gpu-state-lost"
    assert [error.rule for error in lost] == ["gpu-state-lost"] and not beside

    def refuse(*args: Any, **fields: Any) -> Any:
        raise AssertionError("this process has lost its GPU")

    monkeypatch.setattr(trials, "measured", refuse)
    monkeypatch.setattr(trials, "judged", refuse)
    for other in (trial_of({"precision": "bf16"}), trial_of({"num_threads": 2}, num_processes=2)):
        beside.clear()
        result = _run_trial(other, trials, state)
        assert result.trial == other
        assert result.verdict is not None and result.verdict.is_passed
        assert [one.changes for one in beside] == [other.changes] * 2
        assert beside[-1].deadline_s is not None and beside[-1].deadline_s >= 20.0
    rung = Rung(name="base", changes=DEFAULTS, samples_per_s=1.0)
    decision = Decision(
        changes=DEFAULTS, rungs=(rung,), lost=(), refused=(), skipped=(), speedup=FASTER, why="",
        search_s=1.0,
    )  # fmt: skip
    assert _last_probe(state.search, trials, decision, PROFILE).speedup == FASTER


def test_a_capture_that_breaks_in_the_gate_is_no_proof(folder: Path, beside: list[Trial]) -> None:
    trials, lost = contest_here(), []
    result = _run_trial(trial_of(CAPTURED, num_processes=1), trials, left_of(trials, folder, lost))
    # The processes of its own were fine; the gate has asked for a graph here.
    assert result.verdict is not None and not result.verdict.is_passed
    assert [error.rule for error in lost] == ["gpu-state-lost"]


def test_a_search_in_a_notebook_ends_with_a_broken_capture(folder: Path) -> None:
    trials = contest_here()
    with pytest.raises(RunFailed) as caught:
        _run_trial(trial_of(CAPTURED), trials, left_of(trials, None, None))
    assert caught.value.rule == "gpu-state-lost"


def test_the_gate_is_asked_in_a_fresh_process(folder: Path) -> None:
    changes = {**DEFAULTS, "optimizer_implementation": "foreach"}
    surroundings = TrialContext(
        folder=folder, usual_s=5.0, terms=Terms(device_name="cpu", fixed={}), request=StopRequest()
    )
    verdict = judged_in_child(trial_of(changes, deadline_s=200.0), surroundings)
    assert verdict.is_passed and len(verdict.checks) > 1
    late = judged_in_child(trial_of(changes, deadline_s=0.1), surroundings)
    assert not late.is_passed and "could not be checked" in str(late.checks[0].note)
