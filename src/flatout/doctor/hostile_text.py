"""Texts that make a pattern slow, if any do: made from the pattern itself.

Each begins as the pattern wants it, repeats what the pattern repeats, and ends otherwise, so that
the pattern tries every way to divide it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

# As in `prefilter`.
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

_FILL = ("a", " ", "0.", "-", "a/", "(")
_ENDS = ("", "\x01", "!")
_DRAWS = 20
# So often each repetition is drawn: one of its alternatives may be slow with one of another.
_PUMPS = 6
# A part that may occur as often as this is one that repeats.
_REPEATS = 8
_SIZE = 2048


class HostileText(NamedTuple):
    """A text of 2,048 characters: how it begins, what is repeated, and how it ends."""

    begin: str
    repeated: str
    end: str = ""

    def whole(self) -> str:
        """All of it."""
        room = max(0, _SIZE - len(self.begin) - len(self.end))
        return f"{self.begin}{(self.repeated * room)[:room]}{self.end}"[: _SIZE + len(self.end)]


def hostile_texts(pattern: str, texts: Sequence[str] = ()) -> Iterator[HostileText]:
    """Hostile texts for a pattern, the same ones each time, the worst first.

    Args:
        pattern: a valid regular expression.
        texts: fixed texts that a scan looks for before it tries the pattern.
    """
    parsed, rng = _parser.parse(pattern, re.IGNORECASE), random.Random(pattern)
    for begin, repeated in dict.fromkeys(
        one for _ in range(_PUMPS) for one in _repetitions(parsed, "", rng)
    ):
        for end in _ENDS:
            yield HostileText(begin, repeated, end)
    for _ in range(_DRAWS):
        text = drawn(parsed, rng) or "a"
        for share in (0.9, 0.5):
            part = text[: max(1, int(len(text) * share))]
            yield HostileText("", part)
            yield HostileText(part, rng.choice(_FILL))
            yield HostileText(f"{next(iter(texts), '')} ", part)
    for word in texts[:3]:
        yield HostileText("", word)
        yield HostileText(word, rng.choice(_FILL))


def _repetitions(parsed: Any, begin: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Every part of a pattern that is repeated, with what comes before it."""
    for kind, value in parsed:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                if int(value[1]) > _REPEATS:
                    yield begin, drawn(value[2], rng) or "a"
                yield from _repetitions(value[2], begin, rng)
            case "SUBPATTERN" | "ASSERT" | "ASSERT_NOT":
                yield from _repetitions(value[-1], begin, rng)
            case "ATOMIC_GROUP":
                yield from _repetitions(value, begin, rng)
            case "BRANCH":
                for branch in value[1]:
                    yield from _repetitions(branch, begin, rng)
        begin += drawn([(kind, value)], rng)


def drawn(parsed: Any, rng: random.Random) -> str:
    """A text of the kind that a pattern's beginning matches."""
    parts = []
    for kind, value in parsed:
        match str(kind):
            case "LITERAL":
                parts.append(chr(value))
            case "NOT_LITERAL" | "ANY":
                parts.append(rng.choice("a 0"))
            case "IN":
                parts.append(_one_of(value, rng))
            case "BRANCH":
                parts.append(drawn(rng.choice(value[1]), rng))
            case "SUBPATTERN":
                parts.append(drawn(value[-1], rng))
            case "ATOMIC_GROUP":
                parts.append(drawn(value, rng))
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, high, part = value
                times = rng.choice([int(low), min(int(high), 40)])
                parts.append("".join(drawn(part, rng) for _ in range(times)))
    return "".join(parts)


def _one_of(choices: Any, rng: random.Random) -> str:
    if str(choices[0][0]) == "NEGATE":
        return rng.choice("a0")
    signs = [chr(value) for kind, value in choices if str(kind) == "LITERAL"]
    signs += [chr(value[0]) for kind, value in choices if str(kind) == "RANGE"]
    return rng.choice(signs or ["5"])
