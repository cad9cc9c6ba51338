"""Buffers whose shapes differ between ranks: caches are each rank's own, all others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from flatout.engine.ranks.buffer_sync import BufferSync
from flatout.engine.ranks.gradient_sync import check_same_shapes
from flatout.engine.ranks.process_group import MultiRank, alike_tensors
from flatout.errors import UsageError


class OneOfTwo(MultiRank):
    """A rank whose other one has told this before."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def all_gather(self, value: Any, kind: Any = None, *, about: str = "") -> list[Any]:
        """See Ranks."""
        return [value, self.other]


def model(cache: int, stored: int = 2) -> nn.Module:
    made = nn.Linear(2, 2)
    made.register_buffer("cache", torch.zeros(cache), persistent=False)
    made.register_buffer("stored", torch.zeros(stored))
    return made


def forms(of: nn.Module) -> dict[str, str]:
    group = OneOfTwo({})
    reported: dict[str, str] = {}

    def all_gather(value: Any, kind: Any = None, *, about: str = "") -> list[Any]:
        reported.update(value)
        return [value]

    group.all_gather = all_gather  # type: ignore[method-assign]
    alike_tensors(group, of)
    return reported


def test_cache_of_another_size_is_left_alone() -> None:
    ours = model(cache=3)
    alike = alike_tensors(OneOfTwo(forms(model(cache=5))), ours)
    assert sorted(tuple(one.shape) for one in alike) == [(2,), (2,), (2, 2)]
    assert len(alike_tensors(OneOfTwo(forms(model(cache=3))), ours)) == 4


def test_stored_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="`stored` differs between ranks") as caught:
        alike_tensors(OneOfTwo(forms(model(cache=3, stored=4))), model(cache=3))
    assert caught.value.rule == "ranks-do-not-fit"
    assert "(2,) torch.float32 on rank 0 and (4,)" in str(caught.value.because)


def test_buffers_out_of_the_state_dict_are_not_averaged() -> None:
    made: Any = model(cache=3)
    buffers = BufferSync(made)
    made.cache = torch.ones(7)
    made.stored += 1
    assert buffers.moved() == [True] and buffers.shapes() == [[2]]


@pytest.mark.parametrize("other", [[[3]], [[2], [2]], []])
def test_ranks_do_not_average_what_has_other_shapes(other: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="ranks-do-not-fit"):
        check_same_shapes(OneOfTwo(other), [[2]])
    check_same_shapes(OneOfTwo([[2]]), [[2]])
