"""Versions as numbers, and what a user may ask of them: `==2.9.*`, `>=2.8,<2.12`."""

from __future__ import annotations

import re
from collections.abc import Callable

Numbers = tuple[int, ...]

_CLAUSE = re.compile(r"(==|!=|<=|>=|~=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?$")
_COMPARISONS: dict[str, Callable[[Numbers, Numbers], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def numbers(text: str) -> Numbers:
    """ "580.95.05" -> (580, 95, 5); what is not a number ends it."""
    found = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def pair(text: str) -> Pair:
    """ "3.12" -> (3, 12), and "8.6" -> (8, 6).

    Raises:
        ValueError: it is something else.
    """
    found = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", text)
    if found is None:
        raise ValueError(f"{text!r} is not a version with two numbers")
    return int(found[1]), int(found[2])


def pair_text(two: Pair) -> str:
    """(8, 6) -> "8.6"."""
    return f"{two[0]}.{two[1]}"


def is_wish(text: str) -> bool:
    """Whether it is a list of clauses that `meets` understands."""
    return all(_CLAUSE.match(clause.strip()) for clause in text.split(",")) if text else True


def meets(version: str, wish: str) -> bool:
    """Whether a released version is one that was requested."""
    return all(_meets(numbers(version), clause.strip()) for clause in wish.split(",") if clause)


def _meets(version: Numbers, clause: str) -> bool:
    found = _CLAUSE.match(clause)
    if found is None:
        return False
    sign, asked, star = found[1], numbers(found[2]), found[3]
    if sign in ("==", "!="):
        same = version[: len(asked)] == asked if star else _padded(version) == _padded(asked)
        return same == (sign == "==")
    if sign == "~=":
        return _padded(version) >= _padded(asked) and version[: len(asked) - 1] == asked[:-1]
    return _COMPARISONS[sign](_padded(version), _padded(asked))


def _padded(version: Numbers) -> Numbers:
    # "2.9" equals "2.9.0". Longer than any version in the tables, which have four numbers at most.
    return version + (0,) * (6 - len(version))


def driver_text(text: str) -> str:
    """A driver's version as NVIDIA writes it, also from Windows' "32.0.15.8142" for 581.42.

    Raises:
        ValueError: it is not a version.
    """
    plain = text.strip()
    windows = re.fullmatch(r"\d+\.\d+\.\d*(\d)\.(\d\d)(\d\d)", plain)
    if windows:
        return f"{windows[1]}{windows[2]}.{windows[3]}"
    plain = re.sub(r"^[rR](?=\d)", "", plain)
    if not re.fullmatch(r"\d{3}(\.\d+){0,2}", plain):
        raise ValueError(f"{text!r} is not a driver version")
    return plain


def cuda_label(text: str) -> str:
    """A CUDA that was requested as builds are labeled: "12.6", "cu126" -> "cu126"; "12" -> "cu12".

    Raises:
        ValueError: it is not a version of CUDA.
    """
    plain = re.sub(r"^(cuda|cu)[- ]?", "", text.strip().lower())
    found = re.fullmatch(r"(\d\d)\.?(\d)?(?:\.\d+)?", plain)
    if found is None:
        raise ValueError(f"{text!r} is not a CUDA version")
    return f"cu{found[1]}{found[2] or ''}"


Pair = tuple[int, int]
