"""Fixes that a company forbids: told, and never carried out."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.finding import Fix


def without_forbidden(diagnosis: Diagnosis, rules: Collection[str], refusal: str) -> Diagnosis:
    """The same findings; what must not be done for those of the rules is for a person.

    Args:
        diagnosis: with plans.
        rules: whose fixes are forbidden.
        refusal: who forbids them, and why.
    """
    findings = tuple(
        msgspec.structs.replace(one, fixes=tuple(_told(fix, refusal) for fix in one.fixes))
        if one.rule in rules
        else one
        for one in diagnosis.findings
    )
    return msgspec.structs.replace(diagnosis, findings=findings)


def _told(fix: Fix, refusal: str) -> Fix:
    return msgspec.structs.replace(fix, text=f"{fix.text}; {refusal}", safety="manual", plan=None)
