"""What a program prints that means something, and the places where it was seen."""

from __future__ import annotations

import re

import msgspec

# A line is looked at this far around what was found: nothing can make a pattern slow.
WINDOW_BYTES = 2048


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A signature seen. line: its number, from 1; values: what the pattern's groups caught.

    where: of a fact that stands for it, the place where that was read; its line is 0.
    """

    id: str
    line: int
    text: str
    values: dict[str, str] = {}
    where: str | None = None


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Text that a program prints, as it is in every version, language and log of it.

    Attributes:
        id: in kebab case, unlike any other signature's.
        texts: fixed pieces of text, one of which must be there, in any case of letters. They begin
            and end where words do, because they are looked up by their words.
        pattern: must match from anywhere in the line, in any case of letters; None where the text
            says it all. Its named groups are kept. No nested repetition.
        lines: how many lines the pattern sees, beginning with the one that holds the text.
    """

    id: str
    texts: tuple[str, ...]
    pattern: str | None = None
    lines: int = 1

    def match(self, window: str) -> dict[str, str] | None:
        """The values that the pattern catches in a line and those below it; None if it does not."""
        if self.pattern is None:
            return {}
        found = re.search(self.pattern, window, re.IGNORECASE)
        return found and {name: text for name, text in found.groupdict().items() if text}


def signature(id: str, *texts: str, pattern: str | None = None, lines: int = 1) -> Signature:
    """A signature in a line or two."""
    return Signature(id=id, texts=texts, pattern=pattern, lines=lines)
