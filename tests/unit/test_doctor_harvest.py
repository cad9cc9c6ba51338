"""The half of the collected failures that rules were made from, and logs of healthy programs."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

from flatout.doctor.diagnose import case_from_text, diagnose
from flatout.doctor.ruleset import shipped_rules
from flatout.schema.finding import Finding

CASES = Path(__file__).parents[1] / "cases"
LOGS = sorted((CASES / "healthy_logs").glob("*.log"))
# Their text alone does not name the cause.
UNDECIDED = {
    "https://github.com/xinzhuma/monodle/issues/23",
}


def half_a() -> list[dict[str, Any]]:
    """The cases whose source was drawn into half a, as in campaigns/diagnose.py."""
    return [
        case
        for path in sorted((CASES / "harvest").glob("*.toml"))
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]
        if hashlib.sha256(case["source"].encode()).digest()[0] % 2 == 0
    ]


def findings_in(text: str) -> tuple[Finding, ...]:
    ruleset = shipped_rules()
    return diagnose(case_from_text([text.encode()], ruleset), ruleset).findings


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in half_a()
        if case["decidable"] == "yes" and case["cause"] != "none"
        if case["source"] not in UNDECIDED
    ],
    ids=lambda case: case["source"].removeprefix("https://github.com/"),
)
def test_cause_comes_first_when_a_rule_was_made_from_it(case: dict[str, Any]) -> None:
    first = [finding.rule for finding in findings_in(case["text"])[:1]]
    assert {*first} & {case["cause"], *case.get("also", ())}, first


@pytest.mark.parametrize(
    "case", [case for case in half_a() if case["cause"] == "none"],
    ids=lambda case: case["source"].removeprefix("https://github.com/"),
)  # fmt: skip
def test_no_error_when_nothing_was_wrong(case: dict[str, Any]) -> None:
    assert [one for one in findings_in(case["text"]) if one.severity == "error"] == []


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_no_error_in_the_log_of_a_program_that_worked(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    assert [one for one in findings_in(text) if one.severity == "error"] == []


def test_there_are_enough_logs() -> None:
    assert len(LOGS) >= 40
