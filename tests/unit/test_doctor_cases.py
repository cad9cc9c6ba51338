"""Texts and the cause that must come first. The cases are data: tests/cases/doctor."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from flatout.doctor.diagnose import case_from_text, diagnose
from flatout.doctor.ruleset import shipped_rules

RULESET = shipped_rules()

CASES = [
    (f"{path.stem}: {case['name']}", case)
    for path in sorted((Path(__file__).parents[1] / "cases" / "doctor").glob("*.toml"))
    for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]
]


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_first_cause_when_reported(case: dict[str, Any]) -> None:
    found = diagnose(case_from_text([case["text"].encode()], RULESET), RULESET).findings
    errors = [one.rule for one in found if one.severity == "error"]
    if case["first"]:
        assert [one.rule for one in found][:1] == [case["first"]], found
        assert found[0].evidence, "no line is shown for it"
        assert case.get("certainty", found[0].certainty) == found[0].certainty
        fix = " ".join([found[0].fixes[0].text, *found[0].fixes[0].commands, *found[0].confirm])
        assert [text for text in case.get("fix", []) if text not in fix] == []
        assert [text for text in case.get("not_fix", []) if text in fix] == []
    if not case["first"] or case.get("is_harmless"):
        assert errors == []


def test_every_rule_is_first_in_a_case() -> None:
    first = {case["first"] for _, case in CASES}
    # Those without a signature look at facts alone: tests/unit/test_faults.py.
    assert {rule.id for rule in RULESET.rules if rule.signatures} - first == set()
