"""Which goals that need a GPU are reached, from made-up speeds."""

from __future__ import annotations

import pytest
from gpu_goals import GOALS, Goal


def test_a_goal_is_reached_at_its_edge() -> None:
    goal = Goal(unit="tokens", per_sample=1000, at_least=468_000, times_plain=11)
    assert goal.missed(468.0, 42.0, 16) == []
    assert goal.missed(467.0, 42.0, 16) == ["at least 468,000 tokens/s"]
    assert goal.missed(468.0, 43.0, 16) == ["11 x the plain loop"]


def test_a_goal_beside_a_plain_loop_that_did_not_run_is_missed() -> None:
    assert Goal(unit="rows", times_plain=10).missed(1e9, None, 64) == ["10 x the plain loop"]


def test_a_step_and_a_run_have_their_longest_times() -> None:
    step = Goal(unit="rows", step_s=25e-6)
    assert step.missed(64 / 25e-6, None, 64) == []
    assert step.missed(64 / 26e-6, None, 64) == ["a step in 25 us"]
    run = Goal(unit="images", run_samples=840_000, run_s=45)
    assert run.missed(840_000 / 44, None, 512) == []
    assert run.missed(840_000 / 46, None, 512) == ["840,000 samples in 45 s"]


@pytest.mark.parametrize("name", GOALS)
def test_each_goal_can_be_missed(name: str) -> None:
    _, goal = GOALS[name]
    assert goal.missed(1e-3, 1.0, 64)
