"""The search for a recipe, against machines whose speeds are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.finding import Finding
from flatout.schema.tuning import (
    Candidate,
    Check,
    Decision,
    GateVerdict,
    Interval,
    Load,
    Profile,
    Result,
    Trial,
)
from flatout.tune.problem import Problem
from flatout.tune.search import LEAST_GAIN, next_move, priced

PROFILE = Profile(
    step_s=0.01, start_s=2.0, shares={}, num_operations=10,
    has_convolutions=True, has_products=True, has_attention=False,
)  # fmt: skip

BASE = Candidate(name="base", axis="loop", changes={}, why="")
BF16 = Candidate(name="bf16", axis="precision", changes={"precision": "bf16"}, why="")
LAST = Candidate(
    name="channels_last", axis="memory format", changes={"memory_format": "channels_last"}, why="",
)  # fmt: skip
FUSED = Candidate(
    name="fused", axis="optimizer", changes={"optimizer_implementation": "fused"}, why=""
)
FOREACH = Candidate(
    name="foreach", axis="optimizer", changes={"optimizer_implementation": "foreach"}, why=""
)
ONE = Candidate(
    name="1 thread", axis="threads", changes={"num_threads": 1}, why="", is_process_wide=True
)
ALL = (BF16, LAST, FUSED, FOREACH, ONE)

Speed = Callable[[dict[str, Any]], float]


def problem(**changes: Any) -> Problem:
    fields: dict[str, Any] = {
        "base": BASE, "candidates": ALL, "skipped": (), "profile": PROFILE,
        "budget_s": 60.0, "batch_size": 32, "can_start": True,
    }  # fmt: skip
    return Problem(**(fields | changes))


def searched(
    asked: Problem, speed: Speed, *, wrong: tuple[str, ...] = (), error: float = 0.001
) -> tuple[Decision, list[Result]]:
    """Runs a search on a machine with these speeds (the plain loop's is 1)."""
    history: list[Result] = []
    while isinstance(move := next_move(asked, history), Trial):
        history.append(measured(move, speed, wrong, error))
        assert len(history) < 100
    return move, history


def measured(trial: Trial, speed: Speed, wrong: tuple[str, ...], error: float) -> Result:
    before = 1.0 if trial.incumbent is None else speed(trial.incumbent)
    gain = speed(trial.changes) / before
    is_right = trial.candidate.name not in wrong
    return Result(
        trial=trial,
        cost_s=0.5 + 2.5 * trial.num_processes,
        speedup=Interval(middle=gain, low=gain * (1 - error), high=gain * (1 + error)),
        by_process=tuple(
            Interval(middle=gain * (1 + sign * error), low=gain, high=gain)
            for sign, _ in zip(
                itertools.cycle((-1, 0, 1)), range(trial.num_processes), strict=False
            )
        ),
        samples_per_s=1000.0 * speed(trial.changes),
        incumbent_samples_per_s=1000.0 * before,
        verdict=GateVerdict(checks=(Check(name="gradients", is_passed=is_right),)),
    )


def speeds(**gains: float) -> Speed:
    """Speeds that multiply: each given value of a recipe field is that much faster."""

    def speed(changes: dict[str, Any]) -> float:
        product = gains.get("base", 1.0)
        for value in changes.values():
            product *= gains.get(str(value), 1.0)
        return product

    return speed


def test_everything_that_gains_is_in_the_recipe() -> None:
    speed = speeds(base=1.1, bf16=2.0, channels_last=0.8, fused=1.2, foreach=1.1)
    decision, _ = searched(problem(), speed)
    assert decision.changes == {"precision": "bf16", "optimizer_implementation": "fused"}
    assert not decision.is_default
    # Over the defaults, which are 1.1 times as fast as the plain loop.
    assert decision.speedup is not None and abs(decision.speedup.middle - 2.4) < 1e-6
    assert decision.over_plain is not None and abs(decision.over_plain.middle - 2.64) < 1e-6
    assert [rung.name for rung in decision.rungs] == ["plain loop", "base", "bf16", "fused"]
    assert [r.trial.candidate.name for r in decision.lost] == [
        "channels_last", "foreach", "1 thread",
    ]  # fmt: skip


def test_the_defaults_stay_where_nothing_gains_three_percent() -> None:
    decision, _ = searched(problem(), speeds(fused=1.02))
    assert decision.is_default and decision.speedup is None
    assert "not 3 %" in decision.why


def test_the_defaults_stay_where_they_are_slower_than_the_plain_loop_by_little() -> None:
    decision, history = searched(problem(), speeds(base=0.97))
    assert decision.is_default and decision.is_decided and decision.over_plain is not None
    assert decision.why == "no candidate was faster"
    # Nothing came out on top, so nothing is measured in fresh processes.
    assert [one for one in history if one.trial.stage == "final"] == []


def test_the_defaults_are_what_everything_is_compared_with() -> None:
    base = msgspec.structs.replace(BASE, changes={"optimizer_implementation": "fused"})
    decision, history = searched(problem(base=base), speeds(fused=5.0, bf16=1.5, foreach=4.9))
    assert decision.changes == {"optimizer_implementation": "fused", "precision": "bf16"}
    assert decision.speedup is not None and abs(decision.speedup.middle - 1.5) < 1e-6
    tried = [one.trial for one in history if one.trial.candidate != base]
    assert all(one.incumbent is not None for one in tried)
    assert "fused" not in [one.candidate.name for one in tried]


def test_what_beats_the_plain_loop_and_not_the_defaults_is_not_taken() -> None:
    base = msgspec.structs.replace(BASE, changes={"num_threads": 1})
    two = Candidate(name="2 threads", axis="threads", changes={"num_threads": 2}, why="")
    speed = lambda changes: {1: 8.0, 2: 1.1}.get(changes.get("num_threads"), 1.0)  # noqa: E731
    decision, _ = searched(problem(base=base, candidates=(two,)), speed)
    assert decision.is_default and decision.changes == {"num_threads": 1}


def test_what_the_gate_refuses_does_not_win() -> None:
    decision, _ = searched(problem(), speeds(bf16=2.0, fused=1.5), wrong=("bf16",))
    assert decision.changes == {"optimizer_implementation": "fused"}
    assert [result.trial.candidate.name for result in decision.refused] == ["bf16"]


def test_the_whole_recipe_is_refused_where_its_parts_were_right() -> None:
    decision, _ = searched(problem(candidates=(BF16, FUSED)), speeds(bf16=2.0, fused=1.5),
                           wrong=("bf16 + fused",))  # fmt: skip
    assert decision.is_default and decision.changes == {}
    assert [result.trial.candidate.name for result in decision.refused] == ["bf16 + fused"]


def test_a_loser_is_tried_again_once_the_layout_suits_it() -> None:
    def speed(changes: dict[str, Any]) -> float:
        is_last = changes.get("memory_format") == "channels_last"
        is_bf16 = changes.get("precision") == "bf16"
        return (1.2 if is_last else 1.0) * ((1.5 if is_last else 0.7) if is_bf16 else 1.0)

    decision, _ = searched(problem(candidates=(BF16, LAST)), speed)
    assert decision.changes == {"precision": "bf16", "memory_format": "channels_last"}


def test_what_a_process_has_only_once_is_measured_in_one_of_its_own() -> None:
    _, history = searched(problem(), speeds())
    by_name = {result.trial.candidate.name: result.trial.num_processes for result in history}
    assert by_name["1 thread"] == 1 and by_name["fused"] == 0


def test_the_last_word_is_that_of_fresh_processes() -> None:
    _, history = searched(problem(), speeds(bf16=2.0))
    last = history[-1].trial
    assert last.stage == "final" and last.num_processes == 3 and last.incumbent == {}


def test_processes_that_leave_it_open_are_followed_by_more() -> None:
    _, certain = searched(problem(), speeds(bf16=1.5), error=0.005)
    assert [r.trial.num_processes for r in certain if r.trial.stage == "final"] == [3]
    decision, history = searched(problem(), speeds(bf16=1.05), error=0.03)
    finals = [r.trial.num_processes for r in history if r.trial.stage == "final"]
    assert finals[:2] == [3, 1] and sum(finals) <= 9
    # Nine leave it open, too: undecided is not kept.
    assert decision.is_default and not decision.is_decided
    assert sum(result.cost_s for result in history) <= 60.0


def test_no_more_processes_are_asked_for_than_there_is_time_for() -> None:
    _, history = searched(problem(budget_s=30.0), speeds(bf16=1.05), error=0.03)
    finals = [r for r in history if r.trial.stage == "final"]
    assert 3 <= sum(r.trial.num_processes for r in finals) <= 9
    assert sum(result.cost_s for result in history) <= 30.0


def test_what_was_unclear_is_measured_again_for_longer() -> None:
    def sure_the_second_time(trial: Trial) -> float:
        return 0.02 if trial.effort > 1 else 0.2

    history: list[Result] = []
    asked = problem(candidates=(BF16,))
    while isinstance(move := next_move(asked, history), Trial):
        error = 0.001 if move.stage == "final" else sure_the_second_time(move)
        history.append(measured(move, speeds(bf16=1.2), (), error))
    screens = [r.trial for r in history if r.trial.stage == "screen"]
    efforts = [trial.effort for trial in screens if trial.candidate.name == "bf16"]
    assert efforts == [1, 2]
    assert move.changes == {"precision": "bf16"}


USUAL = tuple(msgspec.structs.replace(one, is_usual=True) for one in (BF16, LAST, FUSED))


def searched_in_noise(asked: Problem) -> tuple[Decision, list[int]]:
    """A search for bf16, twice as fast, in noise that half an effort halves; its efforts."""
    history: list[Result] = []
    while isinstance(move := next_move(asked, history), Trial):
        error = 3.0 / move.effort if move.stage == "screen" else 0.01
        history.append(measured(move, speeds(bf16=2.0), (), error))
        assert len(history) < 100
    efforts = [one.trial.effort for one in history if one.trial.candidate.name == "bf16"]
    return move, [effort for effort in efforts if effort]


def test_as_long_as_nothing_is_faster_what_is_unclear_is_measured_for_longer_and_longer() -> None:
    decision, efforts = searched_in_noise(problem(candidates=(BF16,)))
    assert decision.changes == {"precision": "bf16"}
    assert efforts[:4] == [1, 2, 4, 8]


def test_measuring_for_longer_ends_with_the_budget() -> None:
    decision, efforts = searched_in_noise(problem(candidates=(BF16,), budget_s=8.0))
    assert decision.is_default and not decision.is_decided
    assert 8 not in efforts


def test_a_slow_step_has_time_for_one_jump() -> None:
    slow = msgspec.structs.replace(PROFILE, step_s=20.0)
    asked = problem(profile=slow, budget_s=240.0, candidates=(*USUAL, ONE))
    decision, history = searched(asked, speeds(bf16=2.0, fused=1.1))
    assert [result.trial.num_processes for result in history] == [0]
    assert decision.changes == {
        "precision": "bf16", "memory_format": "channels_last", "optimizer_implementation": "fused",
    }  # fmt: skip
    assert decision.speedup is not None and abs(decision.speedup.middle - 2.2) < 1e-6
    assert [(skip.name, skip.is_for_time) for skip in decision.skipped] == [("1 thread", True)]


def test_a_jump_that_is_wrong_or_slower_leaves_the_defaults() -> None:
    slow = msgspec.structs.replace(PROFILE, step_s=20.0)
    asked = problem(profile=slow, budget_s=240.0, candidates=USUAL)
    slower, _ = searched(asked, speeds(bf16=0.5))
    assert slower.is_default and "not 3 %" in slower.why
    wrong, _ = searched(asked, speeds(bf16=2.0), wrong=("bf16 + channels_last + fused",))
    assert wrong.is_default and len(wrong.refused) == 1


def test_one_process_alone_must_show_more_than_processes_differ_by() -> None:
    slow = msgspec.structs.replace(PROFILE, step_s=20.0)
    asked = problem(profile=slow, budget_s=240.0, candidates=USUAL)
    small, _ = searched(asked, speeds(bf16=1.15))
    assert small.is_default and not small.is_decided
    # In a notebook, it is the process that will train.
    here = msgspec.structs.replace(asked, can_start=False)
    assert not searched(here, speeds(bf16=1.15))[0].is_default


def test_a_search_that_is_short_of_time_jumps_first() -> None:
    slow = msgspec.structs.replace(PROFILE, step_s=0.55)
    asked = problem(profile=slow, candidates=(*USUAL, FOREACH, ONE) * 2)
    _, history = searched(asked, speeds(bf16=2.0))
    names = [result.trial.candidate.name for result in history]
    assert names[:2] == ["base", "bf16 + channels_last + fused"]


def test_a_notebook_is_measured_in_its_own_process() -> None:
    decision, history = searched(problem(can_start=False), speeds(bf16=2.0))
    assert {result.trial.num_processes for result in history} == {0}
    assert decision.changes == {"precision": "bf16"}


def test_a_budget_that_is_too_short_tries_less_and_says_so() -> None:
    decision, history = searched(problem(budget_s=4.0), speeds(bf16=2.0, fused=1.5))
    assert sum(result.cost_s for result in history) <= 4.0
    late = [skip for skip in decision.skipped if "no time" in skip.reason]
    assert late and all(skip.is_for_time for skip in late)
    assert not decision.is_default or not decision.is_decided


def test_a_base_that_cannot_be_measured_ends_the_search() -> None:
    asked = problem()
    first = next_move(asked, [])
    assert isinstance(first, Trial)
    decision = next_move(asked, [Result(trial=first, cost_s=0.1)])
    assert isinstance(decision, Decision) and decision.is_default and not decision.is_decided


def test_the_price_is_reported_in_steps() -> None:
    decision, history = searched(problem(), speeds(bf16=2.0))
    # A plain step takes 32 ms here; half of it is saved.
    cost_s = sum(result.cost_s for result in history)
    assert decision.pays_back_after_steps == round(cost_s / 0.016) + 1


def test_the_price_is_the_whole_one_where_it_is_reported() -> None:
    decision, _ = searched(problem(), speeds(bf16=2.0))
    whole = priced(decision, 160.0, 32)
    assert whole.search_s == 160.0 and whole.pays_back_after_steps == 10_001


def test_what_does_not_fit_twice_is_measured_in_one_process() -> None:
    history: list[Result] = []
    asked = problem(candidates=(BF16,))
    lacking = Finding(rule="out-of-memory", severity="note", problem="not enough memory")
    while isinstance(move := next_move(asked, history), Trial):
        result = measured(move, speeds(bf16=2.0), (), 0.001)
        if move.num_processes:
            result = Result(trial=move, cost_s=1.0, problem=lacking)
        history.append(result)
    assert [r.trial.num_processes for r in history if r.trial.stage == "final"] == [3, 0]
    assert move.changes == {"precision": "bf16"} and not move.is_default


gains = st.floats(0.3, 4.0)


@given(
    st.tuples(gains, gains, gains, gains, gains, gains), st.sets(st.sampled_from(range(len(ALL))))
)
def test_a_search_never_ends_worse_than_the_defaults_or_wrong(
    values: tuple[float, ...], wrong: set[int]
) -> None:
    names = ("base", "bf16", "channels_last", "fused", "foreach", "1")
    speed = speeds(**dict(zip(names, values, strict=True)))
    refused = tuple(ALL[number].name for number in wrong)
    decision, _ = searched(problem(), speed, wrong=refused)
    if decision.is_default:
        assert decision.speedup is None and decision.changes == {}
        return
    assert speed(decision.changes) >= LEAST_GAIN * speed({})
    for number in wrong:
        name, value = next(iter(ALL[number].changes.items()))
        assert decision.changes.get(name) != value


def test_the_ladder_begins_with_what_the_plain_loop_needs_to_fit() -> None:
    baseline = {"micro_batch_size": 8}
    base = msgspec.structs.replace(BASE, changes=baseline)
    asked = problem(base=base, baseline=baseline, plain_name="plain loop, 4 micro-batches")
    decision, history = searched(asked, speeds(base=1.1, bf16=2.0))
    assert decision.rungs[0].name == "plain loop, 4 micro-batches"
    assert decision.rungs[0].changes == baseline
    assert all(result.trial.changes["micro_batch_size"] == 8 for result in history)


def test_what_does_not_fit_loses_and_the_search_goes_on() -> None:
    asked = problem()
    history: list[Result] = []
    lacking = Finding(rule="out-of-memory", severity="note", problem="not enough memory")
    while isinstance(move := next_move(asked, history), Trial):
        result = measured(move, speeds(base=1.1, bf16=2.0, fused=1.2), (), 0.001)
        if move.candidate.name == "bf16":
            result = msgspec.structs.replace(result, speedup=None, verdict=None, problem=lacking)
        history.append(result)
    assert move.changes == {"optimizer_implementation": "fused"}
    [lost] = [result for result in move.lost if result.trial.candidate.name == "bf16"]
    assert lost.problem == lacking


def test_what_needs_another_setting_is_tried_once_that_has_won() -> None:
    workers = Candidate(name="workers", axis="data", changes={"loader_workers": 2}, why="")
    ahead = Candidate(
        name="ahead", axis="prefetch", changes={"loader_prefetch": 4}, why="",
        needs="loader_workers",
    )  # fmt: skip

    def names(gain: float) -> tuple[list[str], list[str]]:
        asked = problem(candidates=(workers, ahead))
        decision, history = searched(asked, lambda changes: gain if changes else 1.0)
        tried = [one.trial.candidate.name for one in history if one.trial.stage == "screen"]
        return tried[1:], [skip.reason for skip in decision.skipped]

    assert names(2.0) == (["workers", "ahead"], [])
    assert names(0.5) == (["workers"], ["it has no effect without loader_workers"])


def test_a_bound_search_without_time_for_a_trial_measures_nothing() -> None:
    decision, history = searched(problem(budget_s=0.2, spent_s=0.8, is_bound=True), speeds(bf16=2))
    assert not history and not decision.has_measured and decision.is_default
    assert not decision.is_decided
    assert decision.why.endswith("a search of 2 s would be enough")
    # Where nobody has set a limit, what usually helps is tried all the same.
    assert searched(problem(budget_s=0.2, candidates=USUAL), speeds(bf16=2.0))[1]


def test_a_search_keeps_more_time_for_the_last_word_when_pairs_take_longer_than_thought() -> None:
    asked = problem(candidates=(ONE, BF16, LAST, FUSED, FOREACH), budget_s=60.0)
    history: list[Result] = []
    while isinstance(move := next_move(asked, history), Trial):
        result = measured(move, speeds(bf16=1.5), (), 0.001)
        cost_s = 3.0 * asked.process_s * move.num_processes or 2.0
        history.append(msgspec.structs.replace(result, cost_s=cost_s))
    assert history[-1].trial.stage == "final" and history[-1].trial.num_processes < 3
    assert sum(one.cost_s for one in history) <= asked.budget_s + 3.0 * asked.process_s
    assert any("no time left" in skip.reason for skip in move.skipped)


BUSY = Load(other_cpus=1.4, num_cpus=2)


def searched_beside(asked: Problem, speed: Speed, load: Load) -> tuple[Decision, list[Result]]:
    """As `searched`, on a machine that others use, too."""
    history: list[Result] = []
    while isinstance(move := next_move(asked, history), Trial):
        result = measured(move, speed, (), 0.001)
        loads = (load,) * move.num_processes
        history.append(msgspec.structs.replace(result, load=load, load_by_process=loads))
    return move, history


def test_a_search_beside_other_programs_that_finds_nothing_has_decided_nothing() -> None:
    decision, _ = searched_beside(problem(), speeds(), BUSY)
    assert decision.is_default and not decision.is_decided
    assert decision.why == "other programs used 1.4 of 2 CPUs during the search"
    quiet, _ = searched_beside(problem(), speeds(), Load(other_cpus=0.1, num_cpus=2))
    assert quiet.is_default and quiet.is_decided


def test_what_is_found_beside_other_programs_is_marked_so() -> None:
    decision, _ = searched_beside(problem(), speeds(bf16=2.0), BUSY)
    assert not decision.is_default and decision.is_decided and decision.is_busy


def test_pairs_that_were_disturbed_are_left_out_once_there_are_enough_others() -> None:
    asked = problem(candidates=(BF16,))
    history: list[Result] = []
    while isinstance(move := next_move(asked, history), Trial):
        result = measured(move, speeds(bf16=1.4), (), 0.001)
        num_before = sum(len(one.by_process) for one in history)
        if move.stage == "final" and num_before == 0:
            # The first three: one was beside others, and shows the opposite.
            odd = Interval(middle=0.2, low=0.1, high=0.3)
            quiet = Load(other_cpus=0.0, num_cpus=2)
            result = msgspec.structs.replace(
                result, by_process=(odd, *result.by_process[1:]),
                load_by_process=(BUSY, quiet, quiet),
            )  # fmt: skip
        elif move.stage == "final":
            result = msgspec.structs.replace(
                result, load_by_process=(Load(other_cpus=0.0, num_cpus=2),)
            )
        history.append(result)
    assert move.speedup is not None and move.speedup.low > 1.2 and not move.is_busy
    assert sum(len(one.by_process) for one in history) == 4


def test_what_had_no_time_left_is_not_called_a_loser() -> None:
    asked = problem()
    history: list[Result] = []
    late = Finding(rule="search-out-of-time", severity="note", problem="no time")
    while isinstance(move := next_move(asked, history), Trial):
        result = measured(move, speeds(bf16=2.0), (), 0.001)
        if move.candidate.name == "foreach":
            result = msgspec.structs.replace(result, speedup=None, verdict=None, problem=late)
        history.append(result)
    assert "foreach" not in [one.trial.candidate.name for one in move.lost]
    assert [skip.name for skip in move.skipped if skip.is_for_time] == ["foreach"]
