"""Texts that programs print, and the places where they were found."""

from __future__ import annotations

import re

import msgspec

# A pattern sees only this much around a fixed text, so that no input can make it slow.
WINDOW_BYTES = 2048
# How often a part of a pattern is repeated.
_COUNTS = re.compile(r"\{\d*,?\d*\}|\\d|\\x[0-9a-f]{2}|\[0-9|0-9\]", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![A-Za-z\d])\d+(?![A-Za-z\d])")


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A match of a signature. line: its number, from 1; values: those of the pattern's groups.

    where: for a fact that produces the sign, its source; line is then 0.
    """

    id: str
    line: int
    text: str
    values: dict[str, str] = {}
    where: str | None = None


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Text that a program prints in every version, language and log.

    Attributes:
        id: in kebab case, unique.
        texts: fixed texts; at least one must occur, ignoring case. They begin and end at word
            boundaries, because they are looked up by their words.
        pattern: must match anywhere in the line, ignoring case; None if the fixed text is enough.
            Its named groups are kept. No nested repetition.
        lines: how many lines the pattern sees, starting with the one that contains the text.
    """

    id: str
    texts: tuple[str, ...]
    pattern: str | None = None
    lines: int = 1

    @property
    def has_digits(self) -> bool:
        """Whether its pattern asks for certain numbers, as in `error 803`; not `python3`."""
        return bool(_NUMBER.search(_COUNTS.sub("", self.pattern or "")))

    def match(self, window: str) -> dict[str, str] | None:
        """The values of the pattern's groups in these lines; None if it does not match."""
        if self.pattern is None:
            return {}
        hit = re.search(self.pattern, window, re.IGNORECASE)
        return hit and {name: text for name, text in hit.groupdict().items() if text}


def signature(id: str, *texts: str, pattern: str | None = None, lines: int = 1) -> Signature:
    """Builds a signature."""
    return Signature(id=id, texts=texts, pattern=pattern, lines=lines)
