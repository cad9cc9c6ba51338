"""Something that is wrong or worth knowing, with its evidence and what to do about it."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.errors import FlatoutError

Severity = Literal["error", "warning", "note"]


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A way out, in words or as a command."""

    text: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Bad news: what is wrong, from what evidence, why, and what to do; `rule` names its page."""

    rule: str
    severity: Severity
    problem: str
    because: str | None = None
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()


def finding_from(error: FlatoutError, severity: Severity = "error") -> Finding:
    """The same bad news as a value: to be stored in a run, sent as JSON, shown later."""
    return Finding(
        rule=error.rule,
        severity=severity,
        problem=error.problem,
        because=error.because,
        fixes=(Fix(text=error.fix),),
    )
