"""No pattern of a rule takes long, whatever a log says."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from re import _parser  # type: ignore[attr-defined]

import pytest
from support.pattern_texts import drawn

from flatout.doctor.ruleset import shipped_rules

RULESET = shipped_rules()

PATTERNS = {
    f"{rule.id}:{signature.id}": signature
    for rule in RULESET.rules
    for signature in rule.signatures
    if signature.pattern
}
_SIZE = 2048
# The slowest needs a fifth of it; one that tried each part with each other one, ten times as much.
_LIMIT_S = 0.08
_FILL = ("a", " ", "0.", "-", "a/", "(")


def hostile(name: str) -> Iterator[str]:
    """Texts that begin as the pattern wants it, again and again, and end otherwise."""
    signature, rng = PATTERNS[name], random.Random(name)
    parsed = _parser.parse(signature.pattern, re.IGNORECASE)
    for _ in range(20):
        text = drawn(parsed, rng) or "a"
        for share in (0.9, 0.5):
            part = text[: max(1, int(len(text) * share))]
            yield (part * _SIZE)[:_SIZE]
            yield (part + rng.choice(_FILL) * _SIZE)[:_SIZE]
            yield (f"{signature.texts[0]} {part * _SIZE}")[:_SIZE]
    for word in signature.texts[:3]:
        yield (word * _SIZE)[:_SIZE]
        yield (word + rng.choice(_FILL) * _SIZE)[:_SIZE]


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_is_quick_on_any_text(name: str) -> None:
    pattern = re.compile(PATTERNS[name].pattern or "", re.IGNORECASE)
    slowest_s, slowest = 0.0, ""
    for text in hostile(name):
        begun_s = time.process_time()
        pattern.search(text)
        took_s = time.process_time() - begun_s
        slowest_s, slowest = max((slowest_s, slowest), (took_s, text))
        assert slowest_s < _LIMIT_S, slowest
