"""The benchmark of the search: a process that measures, and what is kept when it is ended."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.system import atomic_files

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("no_regret")


@pytest.fixture
def child(benchmark: Any) -> Iterator[Any]:
    """A process that measures the smallest model."""
    child = benchmark.Child(benchmark.MODELS["tiny_batch"], {"OMP_NUM_THREADS": "1"})
    yield child
    child.close()


def test_child_measures_a_loop_and_a_recipe_and_looks_at_the_grid(child: Any) -> None:
    for name, fields in (("plain", None), ("chosen", {"optimizer_implementation": "fused"})):
        assert child.ask(make=name, fields=fields)["update_s"] > 0
        assert child.ask(time=name, seconds=0.01)["update_s"] > 0
    assert "CPU" in child.ask(make="refused", fields={"precision": "fp16"})["problem"]
    screened = child.ask(screen=0.002, numerics="strict")
    assert not screened["problems"]
    found = [one["fields"] for one in screened["found"]]
    assert 2 <= len(found) <= 48
    assert {fields["precision"] for fields in found} == {"fp32"}
    assert all(one != other for one, other in itertools.combinations(found, 2))
    times = [one["update_s"] for one in screened["found"][:12]]
    assert times == sorted(times)


def test_what_was_measured_is_taken_over_when_the_benchmark_was_ended(
    benchmark: Any, tmp_path: Path
) -> None:
    done = benchmark.Measured(
        key="one", model="mlp", blocks={"plain": [[1.0]]}, others=[], problems={}, final_s=1.0,
        searched=benchmark.Searched(fields=None, search_s=1.0, why=""),
        screened=benchmark.Screened(found=[], problems=[], took_s=1.0),
    )  # fmt: skip
    work = tmp_path / "work.jsonl"
    lines = atomic_files.Lines(work)
    lines.append(done)
    lines.close()
    with open(work, "ab") as file:
        file.write(b'{"key": "torn')
    assert benchmark._read(work, "one") == done
    assert benchmark._read(work, "other") is None
    assert benchmark._read(tmp_path / "none", "one") is None
