"""Control characters in what is shown: made visible where it leaves for a terminal.

Names, metrics and messages come from files that someone else may have written. An escape sequence
in one of them could clear the screen, fake output or write to the clipboard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from flatout.schema.addresses import masked

# C0 but tab and line feed, DEL, C1, and what turns the direction of a text.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PICTURES = 0x2400


def visible(text: str) -> str:
    """The text with a sign in place of each control character."""
    return _HIDDEN.sub(_sign, text) if _HIDDEN.search(text) else text


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(_PICTURES + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"


class VisibleConsole(Console):
    """A console that writes no control characters but those of its own colors and cursor.

    Nor does it write the passwords of addresses.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of what is printed, cells of tables and live displays among it."""
        for segment in super().render(_masked(renderable), options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raised as for any other stream: the reader has closed it."""
        raise BrokenPipeError


def _masked(renderable: RenderableType) -> RenderableType:
    """A text before it is broken into lines; what holds it comes through here part by part."""
    if isinstance(renderable, str):
        return masked(renderable)
    if isinstance(renderable, Text) and (plain := masked(renderable.plain)) != renderable.plain:
        # Styles that begin behind an address would be elsewhere: it is shown in one.
        return Text(plain, renderable.style, overflow=renderable.overflow)
    return renderable
