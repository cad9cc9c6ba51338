"""A model in parts: ranks that build it without its weights begin with those of one rank."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ranks_runs import run_ranks

TESTS = Path(__file__).parents[1]
CASES = TESTS / "cases" / "ranks"
LIMIT_S = 300.0
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
MIB = 2**20
# Of the model whose memory is measured: its weights, a block of them, and room for everything else.
WEIGHTS_BYTES, BLOCK_BYTES, ROOM_BYTES = 64 * MIB, 8 * MIB, 8 * MIB
Once = Callable[[str, Callable[[Path], None]], Path]


def on_two_ranks(folder: Path, program: str, *words: str) -> None:
    own = [str(CASES), str(TESTS), os.environ.get("PYTHONPATH", "")]
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory as Linux reports it")
def test_model_takes_the_memory_of_its_share_on_ranks_that_are_sent_it(
    built: dict[str, Any],
) -> None:
    first, second = built["memory"]["built"]
    # One block is received while the one before is cut.
    assert second <= WEIGHTS_BYTES / 2 + 2 * BLOCK_BYTES + ROOM_BYTES
    # The first rank builds it whole: what is measured can be seen.
    assert WEIGHTS_BYTES <= first <= WEIGHTS_BYTES + 2 * BLOCK_BYTES + ROOM_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory as Linux reports it")
def test_resume_takes_the_memory_of_each_rank_s_moments(built: dict[str, Any]) -> None:
    # Two moments of its half of the weights. Weights are copied into those that are there.
    moments = 2 * WEIGHTS_BYTES / 2
    for grown in built["memory"]["resumed"]:
        # Less than that would mean that what is measured cannot be seen.
        assert 0.9 * moments <= grown <= moments + ROOM_BYTES
