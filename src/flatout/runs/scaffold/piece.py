"""A piece of a new experiment's file, read from templates/."""

from __future__ import annotations

from pathlib import Path

import msgspec

_TEMPLATES = Path(__file__).with_name("templates")


class TemplatePiece(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a file.

    imports: lines to be sorted in among those of the other pieces.
    text: definitions, with `$name` where something is filled in. A `$name` alone on its line is
        filled in with any number of lines, each indented like it; with none, the line goes.
    words: what this piece fills into itself and the others, by name.
    """

    imports: tuple[str, ...] = ()
    text: str = ""
    words: dict[str, str] = {}


def piece(*names: str, **words: str) -> TemplatePiece:
    """Reads templates, such as `data/images`, and joins them into one piece."""
    imports: list[str] = []
    texts = []
    for name in names:
        lines = (_TEMPLATES / f"{name}.py.tmpl").read_text(encoding="utf-8").splitlines()
        while lines and (not lines[0] or lines[0].startswith(("import ", "from "))):
            imports.append(lines.pop(0))
        texts.append("\n".join(lines))
    return TemplatePiece(
        imports=tuple(filter(None, imports)), text="\n\n\n".join(texts), words=words
    )
