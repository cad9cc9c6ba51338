"""Whether an answer is the expected one."""

from __future__ import annotations

import math
from typing import Any

import msgspec

# Sums of floats differ in their last digits with the size of the batch that a request came into.
_TOLERANCE = 1e-3


def is_expected(expected: Any, found: Any) -> bool:
    """Compares JSON values. An object needs to have the expected members only; a list has the
    same length; numbers may differ by 0.1 %.
    """
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and is_expected(value, found[name]) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(is_expected, expected, found))
        )
    if isinstance(expected, bool) or isinstance(found, bool):
        return expected is found
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return math.isclose(expected, found, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE**2)
    return bool(expected == found)


def is_expected_body(expected: Any, body: bytes) -> bool:
    """The same for the body of an answer."""
    try:
        return is_expected(expected, msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
