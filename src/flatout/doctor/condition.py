"""Conditions of rules: `sign-a and (sign-b or wsl) and not sign-c`.

A name is true if that sign was seen; `sign.value` if its pattern captured that group,
`sign.value=text` if it captured exactly this. The names in `FACTS` are about the machine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from flatout.doctor.rule import Case

# Names that are no signs.
FACTS: dict[str, Callable[[Case], bool]] = {
    "wsl": lambda case: case.is_wsl,
    "container": lambda case: case.is_container,
    "linux": lambda case: case.machine.host.os == "linux",
    "windows": lambda case: case.machine.host.os == "windows",
    "here": lambda case: case.is_here,
    "text": lambda case: case.is_text,
}
# With more names, not all combinations of them are tried.
_MOST_NAMES = 12
_WORD = re.compile(r"\s*([()]|[a-z0-9][a-z0-9-]*(?:\.[a-z_]\w*(?:=[^\s()]+)?)?)")


class Name(msgspec.Struct, frozen=True):
    """A sign, a value of it, or a fact of the machine. is_negated: it must not be there."""

    sign: str
    value: str | None = None
    text: str | None = None
    is_negated: bool = False

    def holds(self, case: Case) -> bool:
        """Whether it is true of this case."""
        return self._is_there(case) is not self.is_negated

    def _is_there(self, case: Case) -> bool:
        if self.sign in FACTS:
            return FACTS[self.sign](case)
        if self.value is None:
            return case.sees(self.sign)
        captured = case.value(self.sign, self.value)
        return captured is not None if self.text is None else captured == self.text


class AnyOf(msgspec.Struct, frozen=True):
    """At least one of its parts."""

    parts: tuple[Condition, ...]

    def holds(self, case: Case) -> bool:
        """Whether it is true of this case."""
        return any(part.holds(case) for part in self.parts)


class AllOf(msgspec.Struct, frozen=True):
    """All of its parts."""

    parts: tuple[Condition, ...]

    def holds(self, case: Case) -> bool:
        """Whether it is true of this case."""
        return all(part.holds(case) for part in self.parts)


Condition = Name | AnyOf | AllOf


def parse_condition(text: str) -> Condition:
    """The condition that a text describes.

    Raises:
        ValueError: says what is wrong with the text.
    """
    return _Parser(text).whole()


def names_in(condition: Condition) -> Iterator[Name]:
    """Every name in a condition, in order."""
    if isinstance(condition, Name):
        yield condition
    else:
        for part in condition.parts:
            yield from names_in(part)


def can_be_first(condition: Condition, earlier: Sequence[Condition]) -> bool:
    """Whether a condition can be true while none of the earlier ones is.

    True also if there are too many names to be sure.
    """
    names = {
        (name.sign, name.value, name.text)
        for each in (condition, *earlier)
        for name in names_in(each)
    }
    # A captured value implies its sign, and a certain value that there is one.
    names |= {(sign, None, None) for sign, _, _ in names}
    names |= {(sign, value, None) for sign, value, _ in names}
    if len(names) > _MOST_NAMES:
        return True
    order = sorted(names, key=lambda name: tuple(part or "" for part in name))
    for values in itertools.product((False, True), repeat=len(order)):
        true = {name for name, is_true in zip(order, values, strict=True) if is_true}
        if any(
            (sign, None, None) not in true or (sign, value, None) not in true
            for sign, value, _ in true
        ):
            continue
        if _is_true(condition, true) and not any(_is_true(each, true) for each in earlier):
            return True
    return False


def _is_true(condition: Condition, true: set[tuple[str, str | None, str | None]]) -> bool:
    match condition:
        case Name(sign, value, text, is_negated):
            return ((sign, value, text) in true) is not is_negated
        case AnyOf(parts):
            return any(_is_true(part, true) for part in parts)
        case AllOf(parts):
            return all(_is_true(part, true) for part in parts)


class _Parser:
    """`or` binds weaker than `and`, and that weaker than `not`."""

    def __init__(self, text: str) -> None:
        self.words: list[str] = []
        at = 0
        text = text.strip()
        while at < len(text):
            match = _WORD.match(text, at)
            if match is None:
                rest = text[at : at + 20].strip()
                raise ValueError(f"`{rest}` is neither a name nor and, or, not")
            self.words.append(match[1])
            at = match.end()

    def whole(self) -> Condition:
        condition = self._either()
        if self.words:
            raise ValueError(f"`{self.words[0]}` has no `and` or `or` before it")
        return condition

    def _either(self, *, is_negated: bool = False) -> Condition:
        return self._joined("or", self._both, is_negated=is_negated)

    def _both(self, *, is_negated: bool) -> Condition:
        return self._joined("and", self._single, is_negated=is_negated)

    def _joined(self, word: str, read: Callable[..., Condition], *, is_negated: bool) -> Condition:
        parts = [read(is_negated=is_negated)]
        while self.words and self.words[0] == word:
            self.words.pop(0)
            parts.append(read(is_negated=is_negated))
        if len(parts) == 1:
            return parts[0]
        # A negation is moved to the names (De Morgan).
        is_any = (word == "or") is not is_negated
        return AnyOf(tuple(parts)) if is_any else AllOf(tuple(parts))

    def _single(self, *, is_negated: bool) -> Condition:
        if not self.words:
            raise ValueError("a name is missing at the end")
        word = self.words.pop(0)
        if word == "not":
            return self._single(is_negated=not is_negated)
        if word == "(":
            condition = self._either(is_negated=is_negated)
            if not self.words or self.words.pop(0) != ")":
                raise ValueError("a `)` is missing")
            return condition
        if word in (")", "and", "or"):
            raise ValueError(f"a name is missing before `{word}`")
        sign, _, rest = word.partition(".")
        value, _, expected = rest.partition("=")
        return Name(sign, value or None, expected or None, is_negated)
