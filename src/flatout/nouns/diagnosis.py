"""What is wrong, most likely first, and what would decide where that is open."""

from __future__ import annotations

import msgspec

from flatout.nouns.finding import Finding


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """A question that the evidence leaves open.

    between: rules that fit; empty where something is wrong that no rule knows.
    run: commands whose answer decides.
    """

    between: tuple[str, ...] = ()
    run: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """findings: ranked, the most likely cause first; consequences of another are left out.

    source: the text that was read, where it was one; is_empty: there was nothing in it.
    """

    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    source: str | None = None
    is_empty: bool = False
