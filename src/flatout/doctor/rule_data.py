"""A rule as data: what a file below `doctor/rules` or in a user's rules folder contains.

`docs/rules.md` explains every field. Shipped rules may name Python functions for what is computed
(`verdict`, `[[fact]]`, `fix.computed`, `fix.edits_for`); a user's own rules are data only.
"""

from __future__ import annotations

import msgspec

from flatout.schema.finding import Severity
from flatout.schema.plan import Block, Edit, Place, Safety


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that depends on the case: the first whose `when` is true; without `when`, always."""

    text: str
    when: str | None = None


Text = str | tuple[Variant, ...]


class ShellBySystem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In which shell a fix is typed: under WSL, and elsewhere."""

    wsl: Place
    elsewhere: Place


class FixData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fix, as `flatout.schema.finding.Fix`.

    when: a condition; without it, always.
    computed: a function that makes the whole fix. edits_for: one that makes its edits.
    """

    text: Text = ""
    when: str | None = None
    safety: Safety = "manual"
    commands: tuple[str, ...] = ()
    edits: tuple[Edit | Block, ...] = ()
    where: Place | ShellBySystem = "here"
    changes: Text | None = None
    undo: str | None = None
    computed: str | None = None
    edits_for: str | None = None


class SignatureData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text that a program prints.

    texts: fixed texts, of which one must occur, ignoring case.
    pattern: a regular expression, or its alternatives. The texts that a match contains are derived
        from it; `texts` beside it replaces them.
    xid: numbers of NVIDIA's Xid events, instead of both.
    lines: how many lines the pattern sees.
    """

    id: str
    texts: tuple[str, ...] = ()
    pattern: str | tuple[str, ...] = ()
    xid: tuple[int, ...] = ()
    lines: int = 1


class FactData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check of this machine's facts that produces a sign.

    read: the function. severity, certainty: of the finding, if there is no other evidence.
    in_texts: also checks the facts that a text contains.
    """

    sign: str
    read: str
    severity: Severity = "error"
    certainty: str = "decided"
    in_texts: bool = False


class RuleData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule. The file has its id as name, and the family's folder around it.

    decided, likely, possible: conditions; the first that is true gives the certainty.
    never: a condition under which there is no finding.
    error_if, warning_if, note_if: conditions for another severity.
    evidence: signs to show; by default those named in the conditions, in their order.
    why, example, sources: only for the page.
    """

    id: str
    problem: Text
    because: Text | None = None
    severity: Severity = "error"
    prior: int = 50
    decided: str | None = None
    likely: str | None = None
    possible: str | None = None
    never: str | None = None
    error_if: str | None = None
    warning_if: str | None = None
    note_if: str | None = None
    verdict: str | None = None
    evidence: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    confirm: tuple[str, ...] = ()
    why: str
    example: str
    sources: tuple[str, ...]
    fix: tuple[FixData, ...] = ()
    signature: tuple[SignatureData, ...] = ()
    fact: tuple[FactData, ...] = ()
