"""A block of lines between two marks in a text file, to be found again and taken out."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.system.changes.text_encoding import UnreadableText, line_end, lines_of


def with_block(text: str, name: str, block: Sequence[str], newline: str) -> str:
    """The text with the block of that name, at its place or else at the end; without it if empty.

    Args:
        text: of the whole file, of a language in which `#` begins a comment.
        name: of the block, shown in its markers.
        block: its lines, without their ends.
        newline: for lines that are added.

    Raises:
        UnreadableText: there is one mark without the other, or a block twice.
    """
    first, last = f"# >>> flatout: {name} >>>", f"# <<< flatout: {name} <<<"
    lines = lines_of(text)
    bare = [line.strip() for line in lines]
    if (bare.count(first), bare.count(last)) not in ((0, 0), (1, 1)):
        raise UnreadableText(f"the markers of the block `{name}` do not form a pair")
    marked = [f"{line}{newline}" for line in (first, *block, last)] if block else []
    if first in bare:
        start, end = bare.index(first), bare.index(last)
        if end < start:
            raise UnreadableText(f"the markers of the block `{name}` are in the wrong order")
        if bare[start + 1 : end] == [line.strip() for line in block]:
            return text
        return "".join([*lines[:start], *marked, *lines[end + 1 :]])
    if block and lines and not line_end(lines[-1]):
        lines = [*lines[:-1], lines[-1] + newline]
    return "".join([*lines, *marked])
