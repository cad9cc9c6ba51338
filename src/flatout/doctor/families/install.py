"""Package managers."""

from __future__ import annotations

from flatout.doctor.rule import Rule

RULES: tuple[Rule, ...] = ()
