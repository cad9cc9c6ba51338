"""Programs' words from public threads that no rule was written from: tests/cases/threads."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from flatout.doctor.diagnose import case_from_text, diagnose
from flatout.doctor.ruleset import shipped_rules

RULESET = shipped_rules()

CASES = [
    case
    for path in sorted((Path(__file__).parents[1] / "cases" / "threads").glob("*.toml"))
    for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]
]
# How far down a cause may stand, by how well the text alone tells it.
DEPTHS = {"yes": 1, "partly": 3}


def name_of(case: dict[str, Any]) -> str:
    repository, _, number = case["source"].removeprefix("https://github.com/").rpartition("/")
    return f"{repository.rpartition('/')[0]}#{number}: {case['cause']}"


def rows(cases: list[dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(
            case,
            id=name_of(case),
            marks=[pytest.mark.xfail(reason=case["missed"])] if "missed" in case else [],
        )
        for case in cases
    ]


@pytest.mark.parametrize(
    "case",
    rows([case for case in CASES if case["cause"] != "none" and case["decidable"] in DEPTHS]),
)
def test_cause_when_a_stranger_met_it(case: dict[str, Any]) -> None:
    found = diagnose(case_from_text([case["text"].encode()], RULESET), RULESET).findings
    first = [one.rule for one in found[: DEPTHS[case["decidable"]]]]
    assert {case["cause"], *case.get("also", ())} & set(first), found


@pytest.mark.parametrize("case", rows([case for case in CASES if case["cause"] == "none"]))
def test_no_error_when_a_stranger_had_none(case: dict[str, Any]) -> None:
    found = diagnose(case_from_text([case["text"].encode()], RULESET), RULESET).findings
    assert [one for one in found if one.severity == "error"] == []


def test_causes_named_by_cases_exist() -> None:
    named = {rule for case in CASES for rule in (case["cause"], *case.get("also", ()))}
    assert named - {rule.id for rule in RULESET.rules} == {"none"}


def test_sources_of_cases_differ() -> None:
    sources = [case["source"] for case in CASES]
    assert sorted(sources) == sorted(set(sources))
