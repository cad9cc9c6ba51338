"""Whether a user's own patterns end on any text: each is tried, in a child process with a limit.

A pattern such as `(a|ab|b)+$` would make `flatout explain` hang on the wrong log.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from flatout.doctor.hostile_text import hostile_texts
from flatout.doctor.rule import Rule
from flatout.doctor.toml_text import Misfit, TomlPath
from flatout.system.clock import elapsed_s
from flatout.system.json_process import JsonProcess, ProcessEnded

# Where the child cannot stop a search itself (Windows), it is ended after this time. Much longer
# than any good pattern needs, so that a busy machine refuses none.
_LIMIT_S = 15.0
# Verdicts that are kept, the newest last.
_MOST_KEPT = 1_000
# Characters of a pattern and of a text to quote.
_SHOWN = 40
_REFERENCE = re.compile(r"\(\?P=|\(\?\(|\\[1-9]")


class PatternTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of patterns.

    verdicts: by their `key`: None if they end, otherwise a text on which they do not, empty if it
    is not known. failed: why some could not be tried.
    """

    verdicts: dict[str, str | None] = {}
    failed: str | None = None


class OwnPattern(NamedTuple):
    """A pattern, what a scan looks for before it is tried, and where it is in the file."""

    signature: str
    pattern: str
    texts: tuple[str, ...]
    path: TomlPath

    @property
    def key(self) -> str:
        """Names it by its content."""
        content = "\0".join((self.pattern, *self.texts))
        return hashlib.sha256(content.encode(errors="replace")).hexdigest()


class _Request(msgspec.Struct, frozen=True):
    pattern: str
    texts: tuple[str, ...]


class _Reply(msgspec.Struct, frozen=True):
    slow_text: str | None


def patterns_of(rule: Rule) -> list[OwnPattern]:
    """The rule's patterns; each alternative by itself, so that the right one is named."""
    found = []
    for at, (data, made) in enumerate(zip(rule.data.signature, rule.signatures, strict=True)):
        if isinstance(data.pattern, str) or _refers_to_groups(made.pattern or ""):
            if made.pattern and not data.xid:
                path: TomlPath = ("signature", at, "pattern")
                found.append(OwnPattern(made.id, made.pattern, made.texts, path))
            continue
        for number, one in enumerate(data.pattern):
            path = ("signature", at, "pattern", number)
            found.append(OwnPattern(made.id, one, made.texts, path))
    return found


def _refers_to_groups(pattern: str) -> bool:
    """Whether it may use a group of another alternative."""
    return bool(_REFERENCE.search(pattern))


def tried(patterns: Iterable[OwnPattern], known: Mapping[str, str | None]) -> PatternTrial:
    """What is known, and what a trial of the other patterns shows.

    Args:
        patterns: to try.
        known: verdicts of earlier trials.
    """
    verdicts, failed = dict(known), None
    open_ones = [pattern for pattern in patterns if pattern.key not in verdicts]
    while open_ones and failed is None:
        try:
            open_ones = _try(open_ones, verdicts)
        except (OSError, ProcessEnded) as error:
            failed = str(error)
    return PatternTrial(verdicts=dict(list(verdicts.items())[-_MOST_KEPT:]), failed=failed)


def _try(patterns: list[OwnPattern], verdicts: dict[str, str | None]) -> list[OwnPattern]:
    """Tries patterns in order, in one process; returns those that it did not get to.

    Raises:
        OSError, ProcessEnded: there is no such process, for another reason than a pattern.
    """
    with JsonProcess(sys.executable, "flatout.system.pattern_child") as child:
        for at, pattern in enumerate(patterns):
            if pattern.key in verdicts:
                continue
            texts = tuple(text.whole() for text in hostile_texts(pattern.pattern, pattern.texts))
            child.send(_Request(pattern.pattern, texts))
            try:
                slow = child.receive(_Reply, until_s=elapsed_s() + _LIMIT_S).slow_text
            except TimeoutError:
                verdicts[pattern.key] = ""
                return patterns[at + 1 :]
            verdicts[pattern.key] = slow if slow is None else slow[:_SHOWN]
    return []


def refused(patterns: Iterable[OwnPattern], trial: PatternTrial) -> list[Misfit]:
    """Patterns that may not be used, after they were tried."""
    found = []
    for pattern in patterns:
        if pattern.key not in trial.verdicts:
            why = f"signature `{pattern.signature}`: no trial of its pattern: {trial.failed}"
            found.append(Misfit(why, *pattern.path))
            continue
        slow_text = trial.verdicts[pattern.key]
        if slow_text is not None:
            found.append(Misfit(_refusal(pattern, slow_text), *pattern.path))
    return found


def _refusal(pattern: OwnPattern, slow_text: str) -> str:
    on = f", as on `{ascii(slow_text)[1:-1]}...`" if slow_text else ""
    shown = pattern.pattern
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return (
        f"signature `{pattern.signature}`: the pattern `{shown}` can take forever{on}: two parts "
        "of it can match the same text; end each repetition where the next part begins "
        "(`[^:]{1,60}:`), bound it (`.{0,60}`), and repeat no group that contains a repetition or "
        "alternatives that begin alike"
    )
