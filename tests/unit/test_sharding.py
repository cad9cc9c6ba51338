"""Whether a model is spread over ranks where nobody says."""

from __future__ import annotations

import pytest

from flatout.tune.sharding import default_sharding, state_bytes

GIB = 2**30


def test_state_bytes_when_some_weights_are_frozen() -> None:
    assert state_bytes(100, 10, 2) == 100 + 10 + 10 + 20


@pytest.mark.parametrize(
    ("needed", "free", "value"),
    [(8 * GIB, 10 * GIB, "none"), (8 * GIB + 1, 10 * GIB, "full"), (99 * GIB, None, "none")],
)
def test_default_sharding_goes_by_what_is_free(needed: int, free: int | None, value: str) -> None:
    choice = default_sharding(needed, free)
    assert choice.value == value
    assert (choice.origin == "estimated") == (free is not None)


def test_default_sharding_says_why() -> None:
    why = default_sharding(90 * GIB, 80 * GIB).why
    assert "90.0 GiB on each rank, more than 80 % of the 80.0 GiB free on a GPU" in why
