"""Which goals that need a GPU are reached, from made-up speeds."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import gpu_goals
import pytest
from gpu_accuracy import Kept, learns_as_much
from gpu_goals import GOALS, PARTS, Goal, rows_of


def test_a_goal_is_reached_at_its_edge() -> None:
    goal = Goal(unit="tokens", per_sample=1000, at_least=468_000, times_plain=11)
    assert goal.missed(468.0, 16, {"plain": 42.0}) == []
    assert goal.missed(467.0, 16, {"plain": 42.0}) == ["at least 468,000 tokens/s"]
    assert goal.missed(468.0, 16, {"plain": 43.0}) == ["11 x the plain loop"]


def test_a_goal_beside_a_plain_loop_that_did_not_run_is_missed() -> None:
    assert Goal(unit="rows", times_plain=10).missed(1e9, 64, {}) == ["10 x the plain loop"]


def test_a_step_and_a_run_have_their_longest_times() -> None:
    step = Goal(unit="rows", step_s=25e-6)
    assert step.missed(64 / 25e-6, 64, {}) == []
    assert step.missed(64 / 26e-6, 64, {}) == ["a step in 25 us"]
    run = Goal(unit="images", run_samples=840_000, run_s=45)
    assert run.missed(840_000 / 44, 512, {}) == []
    assert run.missed(840_000 / 46, 512, {}) == ["840,000 samples in 45 s"]


@pytest.mark.parametrize("name", GOALS)
def test_each_goal_can_be_missed(name: str) -> None:
    _, goal = GOALS[name]
    assert goal.missed(1e-3, 64, {"plain": 1.0})


def test_a_goal_beside_another_row_has_that_row_measured() -> None:
    _, goal = GOALS["bert-large-unpadded"]
    assert goal.missed(900.0, 64, {"bert-large": 500.0}) == []
    assert goal.missed(890.0, 64, {"bert-large": 500.0}) == ["1.8 x bert-large"]
    assert goal.missed(890.0, 64, {}) == ["1.8 x bert-large"]
    assert [name for name, _ in rows_of("bert-large-unpadded")] == [
        "bert-large", "bert-large-unpadded",
    ]  # fmt: skip
    assert rows_of("mlp") == [("mlp", None)]


def test_a_recipe_learns_as_much_within_what_chance_brings_apart() -> None:
    plain = [0.9930, 0.9934, 0.9932, 0.9936, 0.9928]
    assert learns_as_much([value - 0.0009 for value in plain], plain)
    assert not learns_as_much([value - 0.0020 for value in plain], plain)
    # Of seeds that differ much, little can be said.
    assert learns_as_much([0.995, 0.985, 0.992, 0.988, 0.993], plain)


def test_each_goal_is_a_part() -> None:
    assert set(PARTS) == set(GOALS)


@pytest.mark.skipif(sys.platform == "win32", reason="a program that only fails is elsewhere there")
def test_a_search_that_fails_is_a_problem_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    options = argparse.Namespace(quick=True, device="cpu", minutes=1.0)
    row = gpu_goals._row("mlp", ["plain", "flatout"], options, time.monotonic() + 60)
    assert row["problems"] == {
        "flatout": "flatout tune ended with 1", "plain": "its process ended with 1",
    }  # fmt: skip


def test_those_that_decide_are_measured_first() -> None:
    assert gpu_goals.CONTESTANTS[:2] == ("flatout", "plain")


def test_trainings_that_are_kept_are_found_by_the_next_command(tmp_path: Path) -> None:
    path = tmp_path / "out" / "kept.jsonl"
    row = {"name": "fp32", "seed": 0, "accuracy": 0.99, "seconds": 40.0}
    Kept(path).add(row)
    # The second was ended while it was written.
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"name": "fp32", "se')
    kept = Kept(path)
    assert kept.has("fp32", 0) and not kept.has("fp32", 1)
    kept.add({**row, "seed": 1, "accuracy": 0.98})
    assert Kept(path).values("fp32", "accuracy") == [0.99, 0.98]
    kept.clear()
    assert not Kept(path).has("fp32", 0)
