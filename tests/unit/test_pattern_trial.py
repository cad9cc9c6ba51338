"""Patterns are tried, in a child process, on texts made from them."""

from __future__ import annotations

import re

import pytest

from flatout.doctor.hostile_text import hostile_texts
from flatout.doctor.pattern_trial import OwnPattern, patterns_of, refused, tried
from flatout.doctor.rule import Rule
from flatout.doctor.rule_data import RuleData, SignatureData
from flatout.doctor.signature import Signature

# Each for another reason: alternatives that are the same, an optional part beside another, and
# parts of which each can match what the next one does.
SLOW = ("(a|a)+$", r"(?:\s*x?)*!", "a{1,90}" * 5 + "b")
QUICK = (r"no seat left on \S{1,40} \(pool (?P<pool>\w{1,20})\)", "killed .* by .{0,60} signal")


def own(pattern: str) -> OwnPattern:
    return OwnPattern("sign", pattern, ("some text",), ("signature", 0, "pattern"))


def test_slow_patterns_are_found_and_the_others_are_not() -> None:
    # Together, so that one that is stopped does not cost the others their turn.
    trial = tried(map(own, (*SLOW, *QUICK)), {})
    assert [pattern for pattern in SLOW if not trial.verdicts[own(pattern).key]] == []
    assert [trial.verdicts[own(pattern).key] for pattern in QUICK] == [None, None]
    assert trial.failed is None


def test_known_pattern_is_not_tried_again() -> None:
    known = {own(SLOW[0]).key: None}
    assert tried([own(SLOW[0])], known).verdicts == known


def test_pattern_that_could_not_be_tried_is_refused_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    trial = tried([own(QUICK[0])], {})
    assert trial.verdicts == {}
    assert trial.failed is not None
    assert "no trial of its pattern" in str(refused([own(QUICK[0])], trial)[0])


def test_each_alternative_is_tried_by_itself_unless_it_refers_to_another() -> None:
    def paths(*alternatives: str) -> list[tuple[str | int, ...]]:
        data = RuleData(
            id="a", problem="", why="", example="", sources=(),
            signature=(SignatureData(id="b", pattern=alternatives),),
        )  # fmt: skip
        made = Signature(id="b", texts=("x",), pattern="|".join(alternatives))
        rule = Rule(data=data, family="own", signatures=(made,))
        return [pattern.path[2:] for pattern in patterns_of(rule)]

    assert paths("one x", "two x") == [("pattern", 0), ("pattern", 1)]
    assert paths("(a) x", r"two \1") == [("pattern",)]


def test_hostile_texts_are_the_same_each_time_and_fit_a_window() -> None:
    for pattern in (*SLOW, *QUICK):
        texts = [text.whole() for text in hostile_texts(pattern, ["some text"])]
        assert texts == [text.whole() for text in hostile_texts(pattern, ["some text"])]
        assert max(map(len, texts)) <= 2_049
        assert re.compile(pattern)
