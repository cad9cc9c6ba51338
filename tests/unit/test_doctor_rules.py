"""What holds for every rule and every signature."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import pytest
from support.busy_machine import least_s

from flatout.doctor.diagnose import case_from_machine, case_from_text, diagnose
from flatout.doctor.rule import Rule
from flatout.doctor.rule_page import page_of
from flatout.doctor.ruleset import shipped_rules
from flatout.doctor.signature import WINDOW_BYTES, Signature
from flatout.schema.machine import Machine

RULESET = shipped_rules()

SIGNATURES = RULESET.signatures
SECTIONS = ("**Recognized by.**", "**Why it matters.**", "**Example.**", "**Fix.**", "**Source.**")


@pytest.mark.parametrize("rule", RULESET.rules, ids=lambda rule: rule.id)
def test_page_of_a_rule_tells_all(rule: Rule) -> None:
    assert [part for part in SECTIONS if part not in page_of(rule)] == []


# An example of the others is a fact of a machine, which no text contains.
SEEN_IN_TEXT = [
    rule
    for rule in RULESET.rules
    if not rule.data.fact
    or {*rule.triggers, *rule.data.evidence} & {signature.id for signature in SIGNATURES}
]


@pytest.mark.parametrize("rule", SEEN_IN_TEXT, ids=lambda rule: rule.id)
def test_example_of_a_rule_is_a_text_that_it_explains(rule: Rule) -> None:
    # As someone would paste it from the rule's page.
    case = case_from_text([rule.data.example.encode()], RULESET)
    assert rule.id in [finding.rule for finding in diagnose(case, RULESET).findings]


def test_page_shows_an_example_of_several_lines_as_a_block() -> None:
    rule = next(rule for rule in RULESET.rules if rule.id == "wsl-gpu-switched-off")
    assert "**Example.**\n\n```\n[gpu]\nenabled=false\n```\n" in page_of(rule)


def test_names_are_given_once() -> None:
    assert [id for id, count in Counter(one.id for one in SIGNATURES).items() if count > 1] == []
    assert [
        id for id, count in Counter(rule.id for rule in RULESET.rules).items() if count > 1
    ] == []


def test_no_two_rules_explain_each_other() -> None:
    # Each would hide the other.
    explained = {rule.id: set(rule.explains) for rule in RULESET.rules}
    for first, others in explained.items():
        assert [other for other in others if first in explained[other]] == [], first


@pytest.mark.parametrize("rule", RULESET.rules, ids=lambda rule: rule.id)
def test_rule_is_quiet_when_nothing_is_known(rule: Rule) -> None:
    assert rule.check(case_from_machine(Machine(), RULESET)) is None


def test_diagnosis_is_empty_when_nothing_is_known() -> None:
    found = diagnose(case_from_machine(Machine(), RULESET), RULESET)
    assert found.findings == found.undecided == ()


@pytest.mark.parametrize("one", SIGNATURES, ids=lambda one: one.id)
def test_signature_is_quick_when_the_text_is_hostile(one: Signature) -> None:
    pieces = [*one.texts, "a", " ", "nvidia ", "0.", "/", "\n", ": ", "(found version "]
    for piece in pieces:
        window = (piece * WINDOW_BYTES)[: 2 * WINDOW_BYTES]
        # Of this thread alone: others of this process may still be at work.
        assert least_s(partial(match_twice, one, window), 0.25, time.thread_time) < 0.25, piece


def match_twice(one: Signature, window: str) -> None:
    one.match(window)
    one.match(f"{one.texts[0]} {window}")


@pytest.mark.parametrize("one", SIGNATURES, ids=lambda one: one.id)
def test_signature_has_words_to_look_for(one: Signature) -> None:
    assert all(any(letter.isascii() and letter.isalpha() for letter in text) for text in one.texts)


def test_what_flatout_does_not_find_is_no_message_of_a_program() -> None:
    for reason in ("nvidia-smi: not found", "NVML: there is no libnvidia-ml.so.1"):
        case = case_from_machine(Machine(unread={"gpus": reason}), RULESET)
        assert not any(case.signs.values()), reason
