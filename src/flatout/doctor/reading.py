"""What the facts of a machine tell a rule: the same signs as in a text, seen without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import msgspec

from flatout.nouns.finding import Certainty, Evidence, Severity
from flatout.nouns.machine import Machine

Facts = tuple[Evidence, ...]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A look at facts that leaves a sign behind, as a signature's look at a text does.

    Attributes:
        sign: the sign that it stands for: a signature's id of the same rule, or one of its own.
        read: the facts that speak for it, each with the place where it was read; none if they do
            not, or are unknown.
        severity, certainty: what the finding weighs where facts alone speak, and no text.
        is_for_texts: it may also look at the few facts that a text tells.
    """

    sign: str
    read: Callable[[Machine], Facts]
    severity: Severity = "error"
    certainty: Certainty = "decided"
    is_for_texts: bool = False


def fact(text: str, where: str) -> Facts:
    """One fact as evidence. where: the file, program or library that told it."""
    return (Evidence(text=text, where=where),)


def version(text: str | None) -> tuple[int, ...]:
    """ "2.9.1+cu130" -> (2, 9, 1): the numbers that it begins with; none of them if unknown."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, found[0].split("."))) if found else ()


def capability(text: str | None) -> tuple[int, int] | None:
    """ "8.6" -> (8, 6)."""
    found = re.fullmatch(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def unmet(machine: Machine, needed: Collection[str], packages: Collection[str] = ()) -> Facts:
    """Packages of the environment asked about that ask for another version of one of `needed`.

    packages: those whose requirements are of interest; all where none is named.
    """
    first = next(iter(machine.environments or ()), None)
    return tuple(
        Evidence(text=f"{one.package} needs {one.needs}, installed is {one.has}", where="metadata")
        for one in (first.unmet if first else ())
        if re.split("[<>=!~]", one.needs)[0] in needed and (not packages or one.package in packages)
    )


def seen_xids(machine: Machine, numbers: Collection[int]) -> Facts:
    """Those of the Xid events with these numbers that the kernel's log holds since the start."""
    found = [
        one for one in (machine.module.xids if machine.module else None) or () if one in numbers
    ]
    return tuple(
        Evidence(text=f"Xid {number}, since the last start", where="dmesg") for number in found
    )
