"""What the benchmark of the search prints of a plain loop that it has stopped."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("times_s", "stopped_s", "expected"),
    [
        ([60.0, 61.0, 90.0], [], False),
        ([60.0, 61.0, 90.0], [90.0], False),
        ([60.0, 90.0, 91.0], [90.0, 91.0], True),
        # It would have taken longer, and another one may then be the median.
        ([60.0, 61.0, 62.0], [60.0], True),
        ([60.0, 90.0], [90.0], True),
        ([90.0], [90.0], True),
    ],
)
def test_median_of_runs_that_were_stopped(
    times_s: list[float], stopped_s: list[float], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    never_slower = importlib.import_module("never_slower")
    assert never_slower.is_median_stopped(times_s, stopped_s) is expected
