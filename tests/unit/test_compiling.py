"""Compiled candidates: offered with reasons, tried last, and won only where compiling pays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.cli.render.show_tune import payback_text
from flatout.schema.finding import Finding
from flatout.schema.tuning import (
    Candidate,
    Check,
    Decision,
    GateVerdict,
    Interval,
    Load,
    Payback,
    Profile,
    Result,
    Rung,
    Setting,
    Trial,
)
from flatout.tune.candidates import candidates
from flatout.tune.compiled_trials import left_to_compile
from flatout.tune.compiling import (
    AXIS,
    for_steps,
    is_won,
    trial_s,
    uncompiled,
    with_best,
    with_payback,
)
from flatout.tune.problem import Problem
from flatout.tune.search import next_move

SETTING = Setting(
    device="cpu", data_kind="tensors", batch_size=32, num_cores=2, num_threads=2,
    has_batch_norm=False, has_bf16=False, has_tf32=False, can_be_fused=True, has_foreach=True,
    num_steps=100_000,
)  # fmt: skip
PROFILE = Profile(
    step_s=0.01, start_s=2.0, shares={"optimizer": 0.1}, num_operations=100,
    has_convolutions=True, has_products=True, has_attention=False,
)  # fmt: skip
RIGHT = GateVerdict(checks=(Check(name="gradients", is_passed=True),))
WRONG = GateVerdict(checks=(Check(name="gradients", is_passed=False),))


def offered(setting: Setting, profile: Profile = PROFILE) -> tuple[list[str], dict[str, str]]:
    tried, skipped = candidates(setting, profile, "default")
    return (
        [one.name for one in tried if one.axis == AXIS],
        {one.name: one.reason for one in skipped if one.axis == AXIS},
    )


def test_a_long_run_may_be_compiled() -> None:
    tried, skipped = offered(SETTING)
    assert tried == ["compiled forward and loss", "compiled step"]
    # Neither repeats bit for bit.
    assert "timings" in skipped["compiled, kernels timed"]
    assert "shapes" in skipped["compiled for any shape"]


def test_where_nothing_need_repeat_any_shape_may_be_compiled() -> None:
    free = msgspec.structs.replace(SETTING, is_deterministic=False)
    assert "compiled for any shape" in offered(free)[0]
    assert "minutes" in offered(free)[1]["compiled, kernels timed"]
    gpu = msgspec.structs.replace(free, device="cuda")
    assert "compiled, kernels timed" in offered(gpu)[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"not_compiled": "there is no C++ compiler"}, "there is no C++ compiler"),
        ({"has_processes": False}, "separate process"),
        ({"num_steps": None}, "the number of steps is unknown"),
        ({"num_steps": 790}, "compiling does not pay off in 790 steps of 10 ms"),
        ({"fixed": {"compiled": "loss"}}, "you have set compiled"),
    ],
)
def test_what_is_not_offered_says_why(changes: dict[str, Any], reason: str) -> None:
    tried, skipped = offered(msgspec.structs.replace(SETTING, **changes))
    assert tried == [] and reason in skipped["compiled forward and loss"]


def test_an_optimizer_that_takes_nothing_is_not_compiled() -> None:
    idle = msgspec.structs.replace(PROFILE, shares={"optimizer": 0.01})
    assert offered(SETTING, idle)[0] == ["compiled forward and loss"]


def result(
    gain: float, *, compile_s: float = 9.1, verdict: GateVerdict | None = RIGHT, low: float = 0.99,
    trial: Trial | None = None,
) -> Result:  # fmt: skip
    candidate = Candidate(name="compiled", axis=AXIS, changes=CODE, why="", is_compiled=True)
    return Result(
        trial=trial or Trial(stage="screen", candidate=candidate, incumbent={}, changes=CODE),
        cost_s=20.0,
        speedup=Interval(middle=gain, low=low * gain, high=gain / low),
        samples_per_s=3200.0 * gain,
        incumbent_samples_per_s=3200.0,
        verdict=verdict,
        compile_s=compile_s,
    )


CODE: dict[str, Any] = {"compiled": "loss", "compile_mode": "default"}


def test_compiling_must_pay_within_the_run() -> None:
    # A step of 10 ms becomes at least 10 - 10 / 1.485 = 3.27 ms shorter: 9.1 s are 2,787 steps.
    short = with_payback(result(1.5), 32, 790)
    assert short.payback == Payback(compile_s=9.1, after_steps=2787, num_steps=790)
    assert not is_won(short)
    assert payback_text(short.payback) == (
        "compiling took 9.1 s; it pays off after 2,787 steps, 790 left"
    )
    assert not is_won(with_payback(result(1.5), 32, 3_000)), "that would leave no margin"
    assert is_won(with_payback(result(1.5), 32, 6_000))


def test_a_gain_that_is_not_sure_never_pays() -> None:
    open_gain = with_payback(result(1.05, low=0.9), 32, 10**9)
    assert open_gain.payback is not None and open_gain.payback.after_steps is None
    assert "may not pay off" in payback_text(open_gain.payback)
    assert not is_won(open_gain)


def test_what_the_gate_refuses_or_never_saw_does_not_win() -> None:
    assert not is_won(with_payback(result(1.5, verdict=WRONG), 32, 10**6))
    assert not is_won(with_payback(result(1.5, verdict=None), 32, 10**6))


@given(
    gain=st.floats(0.5, 3.0), low=st.floats(0.7, 1.0), compile_s=st.floats(0.1, 300.0),
    num_steps=st.integers(1, 10**7),
)  # fmt: skip
def test_what_has_won_saves_more_than_it_costs(
    gain: float, low: float, compile_s: float, num_steps: int
) -> None:
    found = with_payback(result(gain, low=low, compile_s=compile_s), 32, num_steps)
    if is_won(found):
        assert found.speedup is not None
        saved_s = num_steps * 0.01 * (1 - 1 / found.speedup.low)
        assert saved_s >= compile_s


def test_of_what_is_compiled_that_wins_which_ends_the_run_first() -> None:
    other = Candidate(name="other", axis=AXIS, changes=CODE, why="", is_compiled=True)
    slow = Trial(stage="screen", candidate=other, incumbent=None, changes=CODE)

    def best(num_steps: int) -> str:
        found = (result(1.30, compile_s=20.0), result(1.32, compile_s=600.0, trial=slow))
        decision = Decision(
            is_default=True, changes={}, rungs=(Rung(name="", changes={}, samples_per_s=3200.0),),
            lost=tuple(with_payback(one, 32, num_steps) for one in found), refused=(), skipped=(),
            speedup=None, why="", search_s=0.0,
        )  # fmt: skip
        return with_best(decision, 32).rungs[-1].name

    # 5,000 s uncompiled: 20 + 3,846 s are less than 600 + 3,788 s.
    assert best(500_000) == "compiled"
    assert best(50_000_000) == "other"


# The search.


def problem(**changes: Any) -> Problem:
    tried, skipped = candidates(SETTING, PROFILE, "default")
    fields: dict[str, Any] = {
        "base": Candidate(name="base", axis="loop", changes={}, why=""),
        "candidates": tuple(one for one in tried if one.axis in (AXIS, "optimizer")),
        "skipped": skipped, "profile": PROFILE, "budget_s": 120.0, "batch_size": 32,
        "can_start": True, "num_steps": 100_000,
    }  # fmt: skip
    return Problem(**(fields | changes))


def searched(asked: Problem, gains: dict[str, float]) -> tuple[Decision, list[Trial]]:
    """On a machine where a value of a recipe field makes a step so much faster."""

    def speed(changes: dict[str, Any] | None) -> float:
        product = 1.0
        for value in (changes or {}).values():
            product *= gains.get(str(value), 1.0)
        return product

    history: list[Result] = []
    while isinstance(move := next_move(asked, history), Trial):
        gain = speed(move.changes) / speed(move.incumbent)
        one = result(gain, trial=move, low=0.999)
        is_compiled = move.candidate.is_compiled
        history.append(msgspec.structs.replace(
            one, cost_s=20.0 if is_compiled else 0.5 + 2.5 * move.num_processes,
            compile_s=9.1 if is_compiled else None,
            by_process=(one.speedup,) * move.num_processes,
        ))  # fmt: skip
    return move, [one.trial for one in history]


def test_compiled_code_is_tried_last_on_top_of_what_was_decided() -> None:
    decision, trials = searched(problem(), {"fused": 1.2, "loss": 1.5, "both": 1.4})
    assert [one.candidate.axis for one in trials][-3:] == ["final", AXIS, AXIS]
    assert trials[-1].incumbent == {"optimizer_implementation": "fused"}
    assert trials[-1].deadline_s is not None and trials[-1].deadline_s < 120.0
    assert decision.changes == {"optimizer_implementation": "fused", **CODE}
    assert decision.speedup is not None and decision.speedup.middle == pytest.approx(1.8)
    assert decision.uncompiled is not None and not decision.uncompiled.is_default
    assert [rung.name for rung in decision.rungs][-1] == "compiled forward and loss"
    assert "compiled step" in [one.trial.candidate.name for one in decision.lost]


def test_compiled_code_may_win_where_the_defaults_had_stayed() -> None:
    decision, trials = searched(problem(), {"fused": 0.9, "loss": 1.5})
    assert trials[-1].incumbent == {}
    assert decision.changes == CODE and not decision.is_default
    assert len(decision.rungs) == 3 and decision.rungs[2].changes == CODE


def test_what_compiling_pays_is_not_reckoned_beside_other_programs() -> None:
    found = with_payback(result(1.5), 32, 10**6)
    assert is_won(found)
    assert not is_won(msgspec.structs.replace(found, load=Load(other_cpus=1.0, num_cpus=2)))


def test_no_more_is_compiled_than_there_is_time_for() -> None:
    # Whatever the search takes before is missing then.
    short = problem(budget_s=trial_s(PROFILE))
    decision, trials = searched(short, {"fused": 1.2, "loss": 1.5})
    assert not [one for one in trials if one.candidate.is_compiled]
    reasons = [one.reason for one in decision.skipped if one.axis == AXIS]
    assert all("give more time with --budget" in reason for reason in reasons[-2:])


def test_a_search_without_a_trial_compiles_nothing() -> None:
    decision, trials = searched(problem(budget_s=0.1, is_bound=True), {"loss": 9.0})
    assert not decision.has_measured and not trials


def test_a_decision_of_before_is_compiled_only_where_the_run_is_long_enough() -> None:
    long, _ = searched(problem(), {"fused": 1.2, "loss": 1.5})
    short = for_steps(long, 500, 32)
    assert short.changes == {"optimizer_implementation": "fused"} and short.uncompiled is None
    # And the other way round: what was too short then.
    assert for_steps(short, 100_000, 32).changes == long.changes
    assert for_steps(long, None, 32).changes == short.changes


def test_what_a_short_run_left_out_is_compiled_for_a_long_one() -> None:
    setting = msgspec.structs.replace(SETTING, num_steps=500)
    tried, skipped = candidates(setting, PROFILE, "default")
    few = problem(
        candidates=tuple(one for one in tried if one.axis == "optimizer"), skipped=skipped,
        num_steps=500,
    )  # fmt: skip
    gains = {"fused": 1.2, "loss": 1.5, "both": 1.4}
    short, _ = searched(few, gains)
    assert short.changes == {"optimizer_implementation": "fused"}
    long, trials = searched(left_to_compile(problem(), short), gains)
    assert {one.candidate.axis for one in trials} == {AXIS}
    assert long.changes == {"optimizer_implementation": "fused", **CODE}
    assert "500 steps" not in " ".join(one.reason for one in long.skipped)
    # And that once.
    again, trials = searched(left_to_compile(problem(), uncompiled(long)), gains)
    assert not trials and again.changes == long.changes


# On a GPU, with steps in CUDA graphs.

LAUNCHED = msgspec.structs.replace(
    SETTING, device="cuda", forms_to_capture=("fused", "foreach", "own")
)


def waiting(host_share: float) -> Profile:
    return msgspec.structs.replace(PROFILE, host_share=host_share)


def in_graphs(host_share: float = 0.9, *axes: str) -> Problem:
    tried, _ = candidates(LAUNCHED, waiting(host_share), "default")
    return problem(candidates=tuple(one for one in tried if one.axis in (AXIS, *axes)),
                   budget_s=300.0)  # fmt: skip


def test_what_is_compiled_may_become_a_part_of_a_graph() -> None:
    assert "compiled, in a CUDA graph of 8 steps" in offered(LAUNCHED, waiting(0.9))[0]
    # Compiled, a step of the device may take half as long, and the host as long as before.
    tried, skipped = offered(LAUNCHED, waiting(0.2))
    assert "compiled, in a CUDA graph" in tried
    assert "separately" in skipped["compiled, in a CUDA graph of 8 steps"]
    assert "launch-bound" in offered(LAUNCHED, waiting(0.1))[1]["compiled, in a CUDA graph"]
    assert "in a CUDA graph" not in " ".join(offered(SETTING)[1])


def test_compiled_and_in_a_graph_wins_over_compiled_alone() -> None:
    decision, trials = searched(in_graphs(0.2), {"loss": 1.2, "step": 1.5})
    names = [one.candidate.name for one in trials if one.candidate.is_compiled]
    assert names == ["compiled forward and loss", "compiled step", "compiled, in a CUDA graph"]
    assert decision.changes == {**CODE, "capture": "step", "steps_per_launch": 1}


def test_where_the_step_is_in_a_graph_the_code_becomes_a_part_of_it() -> None:
    decision, trials = searched(in_graphs(0.9, "capture"), {"loss": 1.2, "step": 3.0, "8": 1.1})
    compiled = {one.candidate.name: one for one in trials if one.candidate.is_compiled}
    assert set(compiled) == {"compiled forward and loss", "compiled step"}
    assert decision.changes == {**CODE, "capture": "step", "steps_per_launch": 8}
    # No graph can hold a compiled optimizer.
    assert compiled["compiled step"].changes["capture"] == "off"
    reasons = {one.name: one.reason for one in decision.skipped}
    assert "already" in reasons["compiled, in a CUDA graph"]


def test_code_that_no_graph_can_hold_is_tried_without() -> None:
    history: list[Result] = []
    asked = in_graphs(0.9, "capture")
    not_captured = Finding(rule="step-not-captured", severity="note", problem="no")
    while isinstance(move := next_move(asked, history), Trial):
        one = result(1.2, trial=move, low=0.999)
        both = move.changes.get("capture") == "step" and move.changes.get("compiled") == "loss"
        if both:
            one = msgspec.structs.replace(one, speedup=None, verdict=None, problem=not_captured)
        is_compiled = move.candidate.is_compiled
        history.append(msgspec.structs.replace(
            one, cost_s=20.0 if is_compiled else 2.0, compile_s=9.1 if is_compiled else None,
            by_process=(one.speedup,) * move.num_processes if one.speedup else (),
        ))  # fmt: skip
    assert move.changes == {**CODE, "capture": "off", "steps_per_launch": 1}
    assert move.rungs[-1].name == "compiled forward and loss, without a CUDA graph"


def test_what_could_not_be_compiled_is_not_put_into_graphs() -> None:
    history: list[Result] = []
    failed = Finding(rule="compiling-failed", severity="note", problem="no")
    while isinstance(move := next_move(in_graphs(0.2), history), Trial):
        one = result(1.0, trial=move, low=0.999)
        if move.candidate.is_compiled:
            one = msgspec.structs.replace(one, speedup=None, verdict=None, problem=failed)
        history.append(msgspec.structs.replace(one, by_process=()))
    reasons = {one.name: one.reason for one in move.skipped}
    assert "compiling failed" in reasons["compiled, in a CUDA graph"]
