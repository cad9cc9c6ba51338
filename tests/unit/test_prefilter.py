"""Texts derived from patterns: every match contains one of them."""

from __future__ import annotations

import random
import re
from re import _parser  # type: ignore[attr-defined]

import pytest

from flatout.doctor.hostile_text import drawn
from flatout.doctor.prefilter import has_nested_repetition, texts_of, words_of
from flatout.doctor.ruleset import shipped_rules
from flatout.doctor.signature import Signature

DERIVED = [
    signature
    for signature in shipped_rules().signatures
    if signature.pattern and signature.texts == texts_of(signature.pattern, lines=signature.lines)
]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("Could not get lock /var/lib", ("could not get lock /var/lib",)),
        ("Out of memory|oom-kill:", ("out of memory", "oom-kill:")),
        (r"OpenMP.{0,80}loaded at the same time", ("loaded at the same time",)),
        ("lib(?:iomp|omp)5 not found", ("libiomp5 not found", "libomp5 not found")),
        (r"(?:py)?torch \d+ is old", ("torch ", "pytorch ")),
        (r"NCCL WARN .{0,40}(?P<why>refused|reset)", ("nccl warn ",)),
        ("[Mm]inimum capability", ("minimum capability",)),
        (r"^\s*Killed process\s", ("killed process",)),
        (r"\d+\.\d+", ()),
        (r"\w+|error", ()),
    ],
)
def test_texts_of_a_pattern(pattern: str, texts: tuple[str, ...]) -> None:
    assert texts_of(pattern) == texts


def test_word_is_not_complete_where_the_pattern_goes_on_with_letters() -> None:
    # Nothing is looked up for `torch`, which `torchvision` does not have as a word.
    assert texts_of(r"torch\w* failed to load") == (" failed to load",)
    assert words_of("torch\0") == ()


def test_most_shipped_patterns_need_no_texts() -> None:
    patterns = [one for one in shipped_rules().signatures if one.pattern]
    assert len(DERIVED) / len(patterns) > 0.75


@pytest.mark.parametrize("signature", DERIVED, ids=lambda signature: signature.id)
def test_every_match_contains_one_of_the_texts(signature: Signature) -> None:
    pattern = re.compile(signature.pattern or "", re.IGNORECASE)
    parsed, rng = _parser.parse(signature.pattern, re.IGNORECASE), random.Random(signature.id)
    matches = [match for _ in range(60) if (match := pattern.search(drawn(parsed, rng)))]
    for match in matches:
        first = match[0] if signature.lines == 1 else match[0].partition("\n")[0]
        assert any(one in first.lower() for one in signature.texts), match[0]


@pytest.mark.parametrize(
    ("pattern", "is_nested"),
    [
        ("(a+)+b", True), ("(?:a|b*)*", True), (r"(?:\s*x)*", True), ("(?:a{1,900}){1,900}", True),
        ("a+b+", False), ("(?:a{1,8})*", False), ("(?:ab)+", False),
    ],
)  # fmt: skip
def test_nested_repetition_is_found(pattern: str, is_nested: bool) -> None:
    assert has_nested_repetition(pattern) is is_nested
