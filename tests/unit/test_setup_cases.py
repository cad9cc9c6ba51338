"""The solver over machines with a known right answer."""

from __future__ import annotations

import runpy
from itertools import groupby
from pathlib import Path

import pytest
from support.setup_cases import FOLDER, Case, cases

GROUPS = [(key, list(group)) for key, group in groupby(cases(), key=lambda case: case.group)]


def problem(case: Case) -> str | None:
    """What is wrong with the answer to a case."""
    answer = case.answer()
    choice = answer.choice
    said = (choice.cuda, choice.version) if choice else (None, None)
    # Where nothing fits it says what would, and a choice needs no such advice.
    is_whole = bool(answer.why) and bool(answer.nearest) == (choice is None)
    if case.is_right(*said) and is_whole:
        return None
    return f"{case.line}\n    {said}: {answer.why} {answer.ruled_out} {answer.nearest}"


@pytest.mark.parametrize(("group", "asked"), GROUPS, ids=[group[:60] for group, _ in GROUPS])
def test_solve_when_the_answer_is_known(group: str, asked: list[Case]) -> None:
    problems = [said for case in asked if (said := problem(case))]
    assert not problems, "\n".join(problems)


def test_there_are_enough_cases() -> None:
    by_file = {file.stem: file.read_text(encoding="utf-8").count('\n  "')
               for file in FOLDER.glob("*.toml")}  # fmt: skip
    assert by_file["threads"] >= 40
    assert by_file["by_hand"] + by_file["threads"] >= 200
    assert by_file["by_rule"] >= 200
    assert sum(len(asked) for _, asked in GROUPS) == sum(by_file.values()) >= 400


def test_cases_by_rule_are_those_that_the_rules_make(tmp_path: Path) -> None:
    script = tmp_path / "make_by_rule.py"
    script.write_bytes((FOLDER / "make_by_rule.py").read_bytes())
    runpy.run_path(str(script), run_name="__main__")
    made = (tmp_path / "by_rule.toml").read_text(encoding="utf-8")
    assert made == (FOLDER / "by_rule.toml").read_text(encoding="utf-8")


def test_every_case_has_a_source() -> None:
    assert all(len(case.source) > 8 for _, asked in GROUPS for case in asked)
