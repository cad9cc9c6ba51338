"""Checks of a machine's facts: they produce the same signs as signatures in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import msgspec

from flatout.schema.finding import Certainty, Evidence, Severity
from flatout.schema.machine import Machine

Facts = tuple[Evidence, ...]


class FactCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A check of facts that produces a sign, as a signature does for a text.

    Attributes:
        sign: the sign that it produces: the id of one of the rule's signatures, or its own id.
        read: the facts that support the sign, each with its source; none if they do not, or are
            unknown.
        severity, certainty: of the finding if only facts support it, and no text.
        is_for_texts: it may also check the few facts that a text contains.
    """

    sign: str
    read: Callable[[Machine], Facts]
    severity: Severity = "error"
    certainty: Certainty = "decided"
    is_for_texts: bool = False


def fact(text: str, where: str) -> Facts:
    """One fact as evidence. where: the file, program or library it was read from."""
    return (Evidence(text=text, where=where),)


def version(text: str | None) -> tuple[int, ...]:
    """ "2.9.1+cu130" -> (2, 9, 1): the leading numbers; empty if unknown."""
    match = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, match[0].split("."))) if match else ()


def unmet(machine: Machine, needed: Collection[str], packages: Collection[str] = ()) -> Facts:
    """Packages of the examined environment that need another version of one of `needed`.

    packages: only the requirements of these; empty for all.
    """
    first = next(iter(machine.environments or ()), None)
    return tuple(
        Evidence(
            text=f"{requirement.package} needs {requirement.needs}, installed is {requirement.has}",
            where="metadata",
        )
        for requirement in (first.unmet if first else ())
        if re.split("[<>=!~]", requirement.needs)[0] in needed
        and (not packages or requirement.package in packages)
    )


def seen_xids(machine: Machine, numbers: Collection[int]) -> Facts:
    """The Xid events with these numbers in the kernel's log since boot."""
    xids = [
        number
        for number in (machine.module.xids if machine.module else None) or ()
        if number in numbers
    ]
    return tuple(
        Evidence(text=f"Xid {number}, since the last boot", where="dmesg") for number in xids
    )
