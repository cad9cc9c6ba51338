"""What a person set, and what it does not fit."""

from __future__ import annotations

from flatout.doctor.rule import Rule

RULES: tuple[Rule, ...] = ()
