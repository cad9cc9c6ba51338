"""Memory of a GPU that others need, too: the cap, its lowering, and pinned memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from flatout.engine.runtime.child_query import query_in_child
from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.engine.runtime.gpu_memory import MemoryCap, free_bytes, release_memory, room_on
from flatout.errors import UsageError

MIB = 2**20

# Another program that takes 1 GiB and holds it until its standard input ends.
OTHER = """
import sys, torch
held = torch.empty(2**30, dtype=torch.uint8, device="cuda:0")
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    """The device, given back whole."""
    if not torch.cuda.is_available():
        pytest.skip(f"needs a GPU that torch can use (torch {torch.__version__} sees none)")
    device = torch.device("cuda:0")
    torch.zeros(1, device=device)
    release_memory()
    yield device
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    release_memory()


def test_what_is_left_free_cannot_be_taken(gpu: torch.device) -> None:
    """torch itself refuses what would be of others."""
    leave = free_bytes(gpu) - 512 * MIB
    MemoryCap(gpu, leave)
    kept = torch.empty(256 * MIB, dtype=torch.uint8, device=gpu)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(512 * MIB, dtype=torch.uint8, device=gpu)
    assert is_out_of_memory(caught.value) and kept.numel()


def test_no_memory_left_is_reported_at_once(gpu: torch.device) -> None:
    with pytest.raises(UsageError) as caught:
        MemoryCap(gpu, free_bytes(gpu) + MIB)
    assert caught.value.rule == "no-memory-left"


def test_the_cap_is_lowered_where_others_take_memory(gpu: torch.device) -> None:
    cap = MemoryCap(gpu, free_bytes(gpu) - 1024 * MIB)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline().strip() == b"there"
        time.sleep(1.1)  # It looks once a second.
        found = cap.check()
        other.stdin.close()
    assert found is not None and found.rule == "gpu-memory-taken"
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1000 * MIB, dtype=torch.uint8, device=gpu)


def test_room_on_a_gpu_says_why(gpu: torch.device) -> None:
    room = room_on(gpu, None)
    assert "display" in room.why and (room.leave_bytes > 0) == room.is_desktop


def test_memory_is_pinned_in_a_trial(gpu: torch.device) -> None:
    assert query_in_child("flatout.engine.session.pinned_memory", str(64 * MIB), limit_s=120) == {
        "problem": None
    }
