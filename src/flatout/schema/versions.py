"""Versions as numbers, and what a user may ask of them: `==2.9.*`, `>=2.8,<2.12`."""

from __future__ import annotations

import re
from collections.abc import Callable

Numbers = tuple[int, ...]

_CLAUSE = re.compile(r"(==|!=|<=|>=|~=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?$")
_COMPARISONS: dict[str, Callable[[Numbers, Numbers], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def numbers(text: str) -> Numbers:
    """ "580.95.05" -> (580, 95, 5); what is not a number ends it."""
    match = re.match(r"\d+(?:\.\d+)*", text.strip())
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def pair(text: str) -> Pair:
    """ "3.12" -> (3, 12), and "8.6" -> (8, 6).

    Raises:
        ValueError: it is something else.
    """
    match = re.fullmatch(r"(\d{1,2})\.(\d{1,2})", text)
    if match is None:
        raise ValueError(f"{text!r} is not a version with two numbers")
    return int(match[1]), int(match[2])


def pair_text(two: Pair) -> str:
    """(8, 6) -> "8.6"."""
    return f"{two[0]}.{two[1]}"


def is_specifier(text: str) -> bool:
    """Whether it is a list of clauses that `meets` understands."""
    return all(_CLAUSE.match(clause.strip()) for clause in text.split(",")) if text else True


def meets(version: str, specifier: str) -> bool:
    """Whether a released version is one that was requested."""
    return all(
        _meets(numbers(version), clause.strip()) for clause in specifier.split(",") if clause
    )


def _meets(version: Numbers, clause: str) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        return False
    sign, required, star = match[1], numbers(match[2]), match[3]
    if sign in ("==", "!="):
        same = (
            version[: len(required)] == required if star else _padded(version) == _padded(required)
        )
        return same == (sign == "==")
    if sign == "~=":
        return (
            _padded(version) >= _padded(required) and version[: len(required) - 1] == required[:-1]
        )
    return _COMPARISONS[sign](_padded(version), _padded(required))


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
    match = re.fullmatch(r"(\d\d)\.?(\d)?(?:\.\d+)?", plain)
    if match is None:
        raise ValueError(f"{text!r} is not a CUDA version")
    return f"cu{match[1]}{match[2] or ''}"


Pair = tuple[int, int]
