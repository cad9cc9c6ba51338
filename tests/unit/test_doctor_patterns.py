"""No pattern of a rule takes long, whatever a log says."""

from __future__ import annotations

import re
import time
from functools import partial

import pytest
from support.busy_machine import least_s

from flatout.doctor.hostile_text import HostileText, hostile_texts
from flatout.doctor.ruleset import shipped_rules

RULESET = shipped_rules()

PATTERNS = {
    f"{rule.id}:{signature.id}": signature
    for rule in RULESET.rules
    for signature in rule.signatures
    if signature.pattern
}
# The slowest needs a fifth of it; one that tried each part with each other one, ten times as much.
_LIMIT_S = 0.08


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_is_quick_on_any_text(name: str) -> None:
    pattern = re.compile(PATTERNS[name].pattern or "", re.IGNORECASE)
    slowest_s, slowest = 0.0, HostileText("", "")
    for text in hostile_texts(PATTERNS[name].pattern or "", PATTERNS[name].texts):
        # Even the processor time of one thread grows where others share its caches.
        took_s = least_s(partial(pattern.search, text.whole()), _LIMIT_S, time.thread_time)
        slowest_s, slowest = max((slowest_s, slowest), (took_s, text))
        assert slowest_s < _LIMIT_S, slowest
