"""Puts the pieces of a new experiment together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from string import Template

from flatout.nouns.sketch import Sketch
from flatout.templates.models import model
from flatout.templates.piece import Piece
from flatout.templates.sources import source
from flatout.templates.tasks import entry, task

_STANDARD = ("functools", "math", "pathlib", "typing")
# Words may hold words: outputs a number of classes, and that a call.
_DEPTH = 4


def written(sketch: Sketch) -> str:
    """The text of a new experiment's file."""
    data = source(sketch)
    pieces = [data, model(sketch), task(sketch), entry(sketch, data.words.get("classes", ""))]
    words: dict[str, str] = {}
    # What the data says counts most: a column has a name of its own.
    for piece in (*pieces, data):
        words |= piece.words
    for _ in range(_DEPTH):
        words = {name: Template(text).substitute(words) for name, text in words.items()}
    # Not before: what a person names may have a `$` in it.
    words |= {"path": _path(sketch), "target": _quoted(sketch.target or "")}
    body = Template("\n\n\n".join(piece.text.strip("\n") for piece in pieces)).substitute(words)
    head = f'"""{_title(sketch)}\n\nflatout train {sketch.name}.py -s steps=1000\n"""'
    gap = "\n\n\n" if body.startswith(("def ", "class ", "@")) else "\n\n"
    return f"{head}\n\n{_imports(pieces)}{gap}{body}\n"


def _path(sketch: Sketch) -> str:
    path = _quoted(sketch.path or "")
    return f"Path(__file__).parent / {path}" if sketch.is_path_beside else f"Path({path})"


def _quoted(text: str) -> str:
    """A text as Python reads it, in those quotes that need fewer backslashes."""
    if text.count('"') > text.count("'"):
        return repr(text)
    return json.dumps(text, ensure_ascii=False)


def _title(sketch: Sketch) -> str:
    about = {
        "classification": "predicts a class",
        "regression": "predicts a number",
        "language-model": "predicts the next token",
    }
    return f"{sketch.name}: {about[sketch.task]}."


def _imports(pieces: Iterable[Piece]) -> str:
    """Import lines as they are sorted by everybody's tools, each name once."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {}
    for line in (line for piece in pieces for line in piece.imports):
        words = line.replace(",", "").split()
        if words[0] == "import":
            plain.add(words[1])
        else:
            names.setdefault(words[1], set()).update(words[3:])
    blocks = []
    for is_standard in (True, False):
        lines = [f"import {one}" for one in sorted(plain) if (one in _STANDARD) is is_standard]
        lines += [
            f"from {one} import {', '.join(sorted(found, key=_isort_key))}"
            for one, found in sorted(names.items())
            if (one in _STANDARD) is is_standard
        ]
        blocks += ["\n".join(lines)] if lines else []
    return "\n\n".join(blocks)


def _isort_key(name: str) -> tuple[bool, str]:
    # Classes before functions and modules.
    return (not name[0].isupper(), name)
