"""What the benchmark of the search makes of its blocks, and that it goes on where it was ended."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FAST = {"precision": "bf16", "num_threads": 2, "loader_workers": 0, "loader_persistent": False}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The part of the benchmark that counts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("no_regret_report")


def result(
    report: Any, seconds: dict[str, float], *, is_default: bool = False, **fields: Any
) -> Any:
    """A model measured in three processes, with noise of 0.2 % that differs between contestants."""
    blocks = {
        name: [
            [value * (1 + 0.001 * ((block * number + process) % 3)) for block in range(6)]
            for process in range(3)
        ]
        for number, (name, value) in enumerate(seconds.items(), start=1)
    }
    search_s = fields.pop("search_s", 20.0)
    return report.Measured(
        key="",
        model="some_model",
        searched=report.Searched(fields=None if is_default else FAST, search_s=search_s, why=""),
        screened=report.Screened(found=[], problems=[], took_s=1.0),
        blocks=blocks,
        others=[0.0],
        problems={},
        final_s=1.0,
    )


def test_over_plain_is_the_ratio_of_speeds(report: Any) -> None:
    over = result(report, {"plain": 0.3, "chosen": 0.2}).over_plain()
    assert over.middle == pytest.approx(1.5, rel=0.01)
    assert 1.4 < over.low < over.middle < over.high < 1.6


def test_over_plain_is_that_of_the_defaults_where_these_stay(report: Any) -> None:
    seconds = {"plain": 0.3, "defaults": 0.2, "oracle 1": 0.19}
    measured = result(report, seconds, is_default=True)
    assert measured.over_plain().middle == pytest.approx(1.5, rel=0.01)
    assert measured.over_defaults().low == 1.0
    assert measured.of_oracle().middle == pytest.approx(0.19 / 0.2, rel=0.01)


def test_over_defaults_is_the_ratio_of_speeds(report: Any) -> None:
    slower = result(report, {"plain": 0.3, "defaults": 0.2, "chosen": 0.22})
    assert slower.over_defaults().middle == pytest.approx(0.2 / 0.22, rel=0.01)
    goals = dict(report.summary([slower]).goals())
    assert not goals["lower bound over the defaults >= 0.98: 0 of 1"]


def test_beside_others_as_much_must_be_left(report: Any) -> None:
    alone = result(report, {"plain": 0.3, "defaults": 0.2}, is_default=True)
    beside = result(report, {"plain": 0.6, "defaults": 0.5}, is_default=True)
    beside = msgspec.structs.replace(beside, neighbours="loop")
    [(text, is_reached)] = report.beside_others([alone, beside])
    assert not is_reached and text.endswith("1.20 of 1.50, 1 models")
    assert report.beside_others([alone]) == []


def test_one_of_nine_processes_that_was_slow_throughout_does_not_decide(report: Any) -> None:
    measured = result(report, {"plain": 0.3, "chosen": 0.2})
    for name, rows in measured.blocks.items():
        rows += [list(row) for row in 2 * rows]
        if name == "chosen":
            rows[0][:] = [value * 20 for value in rows[0]]
    assert measured.over_plain().low > 1.4


def test_of_oracle_is_one_where_nothing_of_the_grid_is_faster_than_plain(report: Any) -> None:
    measured = result(report, {"plain": 0.3, "oracle 1": 0.4}, is_default=True)
    assert measured.of_oracle().middle == 1.0


def test_of_oracle_compares_with_the_best_on_fresh_blocks(report: Any) -> None:
    seconds = {"plain": 0.4, "chosen": 0.22, "oracle 1": 0.25, "oracle 2": 0.2}
    measured = result(report, seconds)
    assert measured.best_of_oracle() == "oracle 2"
    assert measured.of_oracle().middle == pytest.approx(0.2 / 0.22, rel=0.01)


def test_mean_is_geometric_and_capped(report: Any) -> None:
    assert report.capped_mean([1.0, 100.0]) == pytest.approx(2.0)
    assert report.capped_mean([0.5, 2.0]) == pytest.approx(1.0)


def test_summary_tells_the_data_path_apart(report: Any) -> None:
    measured = result(report, {"plain": 0.6, "chosen": 0.2, "data": 0.3})
    found = report.summary([measured])
    assert found.mean == pytest.approx(3.0, rel=0.01)
    assert found.data_mean == pytest.approx(2.0, rel=0.01)
    assert found.rest_mean == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "search_s", "missed"),
    [
        ({"plain": 0.4, "chosen": 0.2, "oracle 1": 0.2}, 60.0, []),
        ({"plain": 0.4, "chosen": 0.2, "oracle 1": 0.2}, 61.0, ["search"]),
        # Twelve plain steps may take longer than a minute.
        ({"plain": 40.0, "chosen": 20.0, "oracle 1": 20.0}, 450.0, []),
        ({"plain": 0.4, "chosen": 0.2, "oracle 1": 0.18}, 20.0, ["oracle"]),
        ({"plain": 0.4, "chosen": 0.42, "oracle 1": 0.42}, 20.0, ["lower bound", "mean"]),
    ],
)
def test_goals_that_are_missed(
    report: Any, seconds: dict[str, float], search_s: float, missed: list[str]
) -> None:
    found = report.summary([result(report, seconds, search_s=search_s)])
    reported = [text for text, is_reached in found.goals() if not is_reached]
    assert len(reported) == len(missed)
    assert all(any(word in text for text in reported) for word in missed)


def test_table_tells_the_choice_in_few_words(report: Any) -> None:
    measured = result(report, {"plain": 0.3, "chosen": 0.2, "lightning": 0.4})
    header, line = report.table([measured]).splitlines()
    assert line.startswith("some_model        none       300.3 ms  x1.50 [")
    assert line.endswith("bf16, threads 2")
    assert "x2.00" in line and "Lightn." in header
    plain = result(report, {"plain": 0.3}, is_default=True)
    assert report.table([plain]).splitlines()[1].endswith("the defaults")


def test_choice_that_is_only_faster_on_the_whole_is_not_counted(report: Any) -> None:
    measured = result(report, {"plain": 0.3, "chosen": 0.3})
    for row, ratio in zip(measured.blocks["chosen"], (0.8, 1.02, 0.9), strict=True):
        row[:] = [value * ratio for value in row]
    assert measured.over_plain().middle > 1.05
    assert measured.over_plain().low < report.LEAST_LOWER_BOUND
    assert report.summary([measured]).num_not_slower == 0


def test_blocks_are_disturbed_where_others_have_more_than_a_tenth_of_a_core(report: Any) -> None:
    measured = msgspec.structs.replace(
        result(report, {"plain": 0.3}, is_default=True), others=[0.0, 0.09, 0.11, 2.0]
    )
    assert report.disturbed_share([measured]) == 0.5


def test_fields_that_a_plain_loop_has_too_are_not_reported(report: Any) -> None:
    fields = {"precision": "fp32", "attention": "math", "micro_batch_size": 4, "loader_workers": 2}
    assert report.fields_text(fields) == "attention math, micro_batch_size 4, workers 2"
    assert report.fields_text({"precision": "fp32", "loader_workers": 0}) == "flatout's loop"
