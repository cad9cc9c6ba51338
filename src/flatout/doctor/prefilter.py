"""Fixed texts of a pattern: every match contains one of them.

A scan looks for these first and tries the pattern only around them. They are derived, so that they
cannot disagree with the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Python has no public parser of patterns; `tests/unit/test_prefilter.py` shows if this one changes.
from re import _parser  # type: ignore[attr-defined]
from typing import Any

# More combinations of alternatives are cut where they branch.
_MOST_TEXTS = 24
# So few repetitions of a repetition do not make a pattern slow.
_FEW = 8
_LETTERS = re.compile(r"[a-z]+")
_OPEN = "\0"
_LINE_END = ord("\n")
_WITH_LINE_END = ("CATEGORY_SPACE", "CATEGORY_NOT_DIGIT", "CATEGORY_NOT_WORD")


def texts_of(pattern: str, *, lines: int = 1) -> tuple[str, ...]:
    """The texts of which one occurs in each match, in lower case; empty if there are none.

    They are looked up by their words. Where a pattern goes on with a letter, as in `torch\\w+`,
    that word is not complete; texts without a complete word of at least two letters are not usable.

    Args:
        pattern: a regular expression.
        lines: how many lines it sees; of several, the texts must be in the first.
    """
    parsed = _parser.parse(pattern, re.IGNORECASE)
    best = _best(_required(parsed, is_first_line=lines > 1))
    texts = tuple(dict.fromkeys(text.replace(_OPEN, "") for text in best))
    # A text that contains another one, and all its words, finds nothing more.
    return tuple(
        text
        for text in texts
        if not any(
            other != text and other in text and required_words(other) <= required_words(text)
            for other in texts
        )
    )


def required_words(text: str) -> frozenset[str]:
    """Words that a line with this text has: not those at an edge, where a word may go on.

    `cdi device` also occurs in `cdi devices`. Of a text without other words, all count.
    """
    inner = frozenset(
        match[0]
        for match in _LETTERS.finditer(text.lower())
        if match.start() > 0 and match.end() < len(text)
    )
    if any(len(word) > 2 for word in inner):
        return inner
    return frozenset(_LETTERS.findall(text.lower()))


def has_nested_repetition(pattern: str) -> bool:
    """Whether a part that is often repeated contains another such part, as in `(a+)*`."""
    return any(_nested(_parser.parse(pattern, re.IGNORECASE), is_repeated=False))


def _nested(parsed: Any, *, is_repeated: bool) -> Iterator[bool]:
    for kind, value in parsed:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT":
                is_open = int(value[1]) > _FEW
                yield is_repeated and is_open
                yield from _nested(value[2], is_repeated=is_repeated or is_open)
            case "BRANCH":
                for branch in value[1]:
                    yield from _nested(branch, is_repeated=is_repeated)
            case "SUBPATTERN":
                yield from _nested(value[-1], is_repeated=is_repeated)
            case "ASSERT" | "ASSERT_NOT":
                yield from _nested(value[1], is_repeated=is_repeated)


def _best(sets: Iterator[Sequence[str]]) -> Sequence[str]:
    """The most selective of the sets of texts."""
    usable = [texts for texts in sets if texts and all(map(words_of, texts))]
    return max(usable, key=lambda texts: (min(map(_rarity, texts)), -len(texts)), default=())


def words_of(text: str) -> tuple[str, ...]:
    """The complete words of a text; those at an edge marked as open are not."""
    found = []
    for match in _LETTERS.finditer(text):
        before, after = text[: match.start()], text[match.end() :]
        if not before.endswith(_OPEN) and not after.startswith(_OPEN):
            found.append(match[0])
    return tuple(found) if any(len(word) > 1 for word in found) else ()


def _rarity(text: str) -> int:
    # Two words are rarer than one, and a long one is rarer than a short one.
    words = words_of(text)
    return max(map(len, words)) * 2 + sum(map(len, words))


def _required(
    parsed: Any, begun: Sequence[str] = ("",), *, is_first_line: bool
) -> Iterator[Sequence[str]]:
    """Sets of texts: each match contains at least one text of each set.

    Args:
        parsed: a sequence of a parsed pattern.
        begun: what stands directly before it.
        is_first_line: only what is certainly in the first line of a match.
    """
    runs = list(begun)
    for kind, value in parsed:
        if is_first_line and _can_end_line(str(kind), value):
            break
        pieces = _pieces(str(kind), value)
        if pieces is not None and len(runs) * len(pieces) <= _MOST_TEXTS:
            runs = [run + piece for run in runs for piece in pieces]
            continue
        if str(kind) in ("AT", "ASSERT", "ASSERT_NOT"):
            continue
        edge = _OPEN if _is_letter(str(kind), value) else ""
        yield [run + edge for run in runs]
        yield from _inside(str(kind), value, runs, is_first_line=is_first_line)
        runs = [edge]
    yield runs


def _inside(
    kind: str, value: Any, runs: Sequence[str], *, is_first_line: bool
) -> Iterator[Sequence[str]]:
    """What a match of this part contains, with what stands before it."""
    match kind:
        case "SUBPATTERN":
            yield from _required(value[-1], runs, is_first_line=is_first_line)
        case "MAX_REPEAT" | "MIN_REPEAT" if int(value[0]) > 0:
            yield from _required(value[2], is_first_line=is_first_line)
        case "BRANCH":
            # Python's parser takes a common beginning of all alternatives out of them.
            found = [
                _best(_required(branch, runs, is_first_line=is_first_line)) for branch in value[1]
            ]
            if all(found):
                yield [text for texts in found for text in texts]


def _can_end_line(kind: str, value: Any) -> bool:
    """Whether this part can match the end of a line."""
    match kind:
        case "LITERAL":
            return bool(value == _LINE_END)
        case "NOT_LITERAL":
            return bool(value != _LINE_END)
        case "IN":
            listed = [(str(name), str(code)) for name, code in value]
            is_in = ("LITERAL", str(_LINE_END)) in listed or any(
                name == "CATEGORY" and code in _WITH_LINE_END for name, code in listed
            )
            return not is_in if listed[0][0] == "NEGATE" else is_in
        case "MAX_REPEAT" | "MIN_REPEAT":
            return any(_can_end_line(str(kind), value) for kind, value in value[2])
        case "SUBPATTERN":
            return any(_can_end_line(str(kind), value) for kind, value in value[-1])
        case "BRANCH":
            return any(
                _can_end_line(str(kind), value) for branch in value[1] for kind, value in branch
            )
    return False


def _pieces(kind: str, value: Any) -> list[str] | None:
    """All texts that this part can match, if they are few; None if they are not."""
    match kind:
        case "LITERAL":
            return [chr(value).lower()]
        case "IN":
            signs = {chr(code).lower() for name, code in value if str(name) == "LITERAL"}
            return sorted(signs) if len(signs) == 1 and len(value) <= 2 else None
        case "SUBPATTERN":
            return _sequence(value[-1])
        case "BRANCH":
            branches = [_sequence(branch) for branch in value[1]]
            whole = [piece for branch in branches if branch is not None for piece in branch]
            return whole if None not in branches and len(whole) <= _MOST_TEXTS // 2 else None
        case "MAX_REPEAT" | "MIN_REPEAT" if (int(value[0]), int(value[1])) == (0, 1):
            inner = _sequence(value[2])
            return ["", *inner] if inner is not None and len(inner) <= 4 else None
    return None


def _sequence(parsed: Any) -> list[str] | None:
    texts = [""]
    for kind, value in parsed:
        if str(kind) == "AT":
            continue
        pieces = _pieces(str(kind), value)
        if pieces is None or len(texts) * len(pieces) > _MOST_TEXTS // 2:
            return None
        texts = [text + piece for text in texts for piece in pieces]
    return texts


def _is_letter(kind: str, value: Any) -> bool:
    """Whether this part begins or ends with a letter, so that the word next to it goes on."""
    match kind:
        case "LITERAL":
            return chr(value).isalpha()
        case "IN":
            names = [(str(name), code) for name, code in value]
            if names[0][0] == "NEGATE":
                return False
            return any(
                (name == "CATEGORY" and "WORD" in str(code) and "NOT" not in str(code))
                or (name == "LITERAL" and chr(code).isalpha())
                or (name == "RANGE" and chr(code[1]).isalpha())
                for name, code in names
            )
        case "MAX_REPEAT" | "MIN_REPEAT":
            return any(_is_letter(str(kind), value) for kind, value in value[2])
        case "SUBPATTERN":
            return any(_is_letter(str(kind), value) for kind, value in value[-1])
        case "BRANCH":
            return any(
                _is_letter(str(kind), value)
                for branch in value[1]
                for kind, value in [*branch[:1], *branch[-1:]]
            )
    return False
