"""Texts that programs print, and the places where they were found."""

from __future__ import annotations

import re

import msgspec

# A pattern sees only this much around a fixed text, so that no input can make it slow.
WINDOW_BYTES = 2048


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

    def match(self, window: str) -> dict[str, str] | None:
        """The values of the pattern's groups in these lines; None if it does not match."""
        if self.pattern is None:
            return {}
        hit = re.search(self.pattern, window, re.IGNORECASE)
        return hit and {name: text for name, text in hit.groupdict().items() if text}


def signature(id: str, *texts: str, pattern: str | None = None, lines: int = 1) -> Signature:
    """Builds a signature."""
    return Signature(id=id, texts=texts, pattern=pattern, lines=lines)
