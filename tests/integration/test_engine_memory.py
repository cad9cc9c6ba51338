"""What is asked about the memory of a GPU, and of processes of their own; without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from flatout.engine.runtime.child_query import query_in_child
from flatout.engine.runtime.error_map import is_out_of_memory, to_flatout_error
from flatout.engine.runtime.gpu_memory import (
    drives_display,
    free_bytes,
    reserved_memory_finding,
    room_on,
)
from flatout.engine.session.pinned_memory import problem_from_trial, with_pinning_tried
from flatout.engine.session.session import build

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate "
                     "memory: you tried to allocate 8000000000000 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA error: out of memory"),
        MemoryError(),
    ],
)  # fmt: skip
def test_want_of_memory_is_known_when(error: Exception) -> None:
    assert is_out_of_memory(error)
    news = to_flatout_error(error)
    assert news is not None and news.rule == "out-of-memory"


def test_other_errors_are_no_want_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def test_what_is_free_is_bounded_by_the_container() -> None:
    held = psutil.Process().memory_info().rss
    assert 0 < free_bytes(CPU) <= psutil.virtual_memory().total
    assert free_bytes(CPU, held + 2**20) <= 2**24
    assert free_bytes(CPU, 1) == 0


def test_a_cpu_leaves_what_was_asked_for() -> None:
    assert room_on(CPU, None).leave_bytes == 0
    room = room_on(CPU, 2**30)
    assert room.leave_bytes == 2**30 and not room.is_capped
    assert (
        "1.0 GiB of the computer's memory"
        in reserved_memory_finding(room, CPU, is_searched=True).problem
    )
    assert reserved_memory_finding(room, CPU, is_searched=False).rule == "option-without-effect"


TOLD = {"gpus": [
    {"uuid": "GPU-1a", "has_display": False}, {"uuid": "GPU-2b", "has_display": True}, {},
    {"uuid": "GPU-3c", "has_display": None},
]}  # fmt: skip


@pytest.mark.parametrize(
    ("reported", "uuid", "has_display"),
    [
        (TOLD, "1a", False), (TOLD, "GPU-2b", True), (TOLD, "3c", None), (TOLD, "4d", None),
        (TOLD, "", None), ({"error": "NVML: Driver Not Loaded"}, "1a", None),
        ("no answer within 3 s", "1a", None),
    ],
)  # fmt: skip
def test_display_reported_when(
    reported: dict[str, Any] | str, uuid: str, has_display: bool | None
) -> None:
    assert drives_display(reported, uuid) is has_display


@pytest.mark.parametrize(
    ("reported", "problem"),
    [
        ({"problem": None}, None),
        (
            {"problem": "CUDA error: out of memory"},
            "pinning 512 MiB failed in a test under WSL: CUDA error",
        ),
        ("no answer within 60 s", "no answer within 60 s"),
        ({}, "gave no result"),
    ],
)
def test_pinning_is_decided_by_a_trial(reported: dict[str, Any] | str, problem: str | None) -> None:
    found = problem_from_trial(reported, 512 * 2**20)
    assert found is None if problem is None else found is not None and problem in found


def test_a_trial_of_pinning_answers_without_a_gpu() -> None:
    reported = query_in_child("flatout.engine.session.pinned_memory", str(2**20), limit_s=120)
    if torch.cuda.is_available():
        assert isinstance(reported, dict) and "problem" in reported
    else:
        assert reported == {"problem": "torch sees no GPU in the test process"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import time; time.sleep(60)", "no answer within"),
        ("raise SystemExit('gone')", "exited with code 1: gone"),
        ("print('[]')", "cannot read its answer"),
        ("print('no')", "cannot read its answer"),
    ],
)
def test_asked_aside_when_it_fails(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reported = query_in_child("asked", limit_s=0.5 if "sleep" in text else 60)
    assert isinstance(reported, str) and said in reported


def test_a_recipe_without_a_gpu_asks_nothing(plain: Any) -> None:
    built = build(plain(), 0, "cpu")
    recipe = built.recipe({})
    assert with_pinning_tried(recipe, built) is recipe
    assert "flatout.engine.session.pinned_memory" in sys.modules
