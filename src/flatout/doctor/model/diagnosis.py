"""The findings, most likely first, and how to decide between undecided ones."""

from __future__ import annotations

import msgspec

from flatout.schema.finding import Finding
from flatout.schema.machine import Machine


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """A question that the evidence leaves open.

    between: rules that fit; empty if no rule knows the problem.
    run: commands whose output decides.
    """

    between: tuple[str, ...] = ()
    run: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """findings: ranked, the most likely cause first; consequences of another are omitted.

    source: name of the text, if one was read; is_empty: the text was empty.
    warnings: what is wrong with the user's own rules.
    """

    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    source: str | None = None
    is_empty: bool = False
    warnings: tuple[str, ...] = ()


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and its findings.

    families: each finding's rule -> its family ("wsl", "driver" ...).
    other_cpus: CPUs kept busy by other programs during the examination; None if not measured.
    """

    machine: Machine
    diagnosis: Diagnosis
    families: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    other_cpus: float | None = None
