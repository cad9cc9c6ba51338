"""A model in parts: ranks build it, and read a checkpoint of it, without memory for all of it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks_runs import run_ranks

CASES = Path(__file__).parents[1] / "cases" / "ranks"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIMIT_S = 300.0
MIB = 2**20
# Of parts_memory.py: 8 blocks of 8 MiB, and two moments as large.
WEIGHTS, BLOCK, STATE = 64 * MIB, 8 * MIB, 192 * MIB
# Why the second rank had to build it whole.
WHYS = {
    "deep": None,
    "cached": None,
    "reading": "Tensor.item() cannot be called on meta tensors",
    "keeping": "it keeps a tensor of shape (6,) that is neither a parameter nor a buffer",
    "viewed": "`some` is a view of another tensor",
    "closing": "it keeps a tensor of shape (1,) that is neither a parameter nor a buffer",
    "reading optimizer": "Tensor.item() cannot be called on meta tensors",
}
Once = Callable[[str, Callable[[Path], None]], Path]


def on_two_ranks(folder: Path, program: str, *words: str) -> None:
    own = [str(CASES), str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, own)))
        patch.setenv("FLATOUT_STATE", str(folder / "state"))
        run_ranks(2, [str(CASES / program), str(folder), *words], folder, LIMIT_S)


@pytest.fixture(scope="module")
def built(once: Once) -> dict[str, Any]:
    folder = once("parts-built", lambda folder: on_two_ranks(folder, "parts_built.py"))
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.parametrize("name", WHYS)
def test_models_in_parts_begin_with_the_weights_of_one_rank(
    built: dict[str, Any], name: str
) -> None:
    for own in built[name]["ranks"]:
        assert own == {"differing": [], "same_data": True, "is_left_empty": False, "ties": True}
    first, second = built[name]["whys"]
    assert first is None
    assert (second is None) == (WHYS[name] is None)
    assert WHYS[name] is None or WHYS[name] in second


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_need_memory_for_their_parts(tmp_path: Path) -> None:
    found = {}
    for mode in ("new", "again"):
        on_two_ranks(tmp_path, "parts_memory.py", mode)
        for rank in (0, 1):
            found[mode, rank] = json.loads((tmp_path / f"{mode}.{rank}.json").read_text())
    # Half of the weights, and a block that is on its way.
    assert found["new", 1]["most"] < WEIGHTS / 2 + 2 * BLOCK
    assert found["new", 0]["now"] < WEIGHTS / 2 + 2 * BLOCK
    # Half of weights and moments; while they are taken over, half of the weights once more.
    for rank in (0, 1):
        assert found["again", rank]["now"] < STATE / 2 + 2 * BLOCK
        assert found["again", rank]["most"] < STATE / 2 + WEIGHTS / 2 + 2 * BLOCK
