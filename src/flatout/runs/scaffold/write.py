"""Assembles the pieces of a new experiment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from string import Template
from textwrap import indent

from flatout.runs.model.new_experiment import NewExperiment
from flatout.runs.scaffold.piece import TemplatePiece
from flatout.runs.scaffold.sources import source
from flatout.runs.scaffold.tasks import entry, model, task

_STANDARD = ("functools", "math", "pathlib", "typing")
# Words may contain words: `$outputs` contains `$num_classes`, which may be a call.
_DEPTH = 4
_ALONE = re.compile(r"^(?P<margin> *)\$(?P<name>\w+)\n", re.MULTILINE)


def written(draft: NewExperiment) -> str:
    """The text of a new experiment's file."""
    data = source(draft)
    pieces = [data, model(draft), task(draft), entry(draft, data.words.get("classes", ""))]
    words: dict[str, str] = {}
    # The data's words win: a column has its own name.
    for piece in (*pieces, data):
        words |= piece.words
    for _ in range(_DEPTH):
        words = {name: Template(text).substitute(words) for name, text in words.items()}
    # Only now: a path or a column may contain a `$`.
    words |= {"path": _path(draft), "target": _quoted(draft.target or "")}
    body = "\n\n\n".join(_filled(piece.text, words).strip("\n") for piece in pieces)
    head = f'"""{_title(draft)}\n\nflatout train {draft.name}.py -s steps=1000\n"""'
    gap = "\n\n\n" if body.startswith(("def ", "class ", "@")) else "\n\n"
    return f"{head}\n\n{_imports(pieces)}{gap}{body}\n"


def _filled(text: str, words: dict[str, str]) -> str:
    def lines(match: re.Match[str]) -> str:
        word = words[match["name"]]
        return indent(f"{word}\n", match["margin"]) if word else ""

    return Template(_ALONE.sub(lines, text)).substitute(words)


def _path(draft: NewExperiment) -> str:
    path = _quoted(draft.path or "")
    return f"Path(__file__).parent / {path}" if draft.is_path_beside else f"Path({path})"


def _quoted(text: str) -> str:
    """A text as Python reads it, in the quotes that need fewer backslashes."""
    if text.count('"') > text.count("'"):
        return repr(text)
    return json.dumps(text, ensure_ascii=False)


def _title(draft: NewExperiment) -> str:
    about = {
        "classification": "predicts a class",
        "regression": "predicts a number",
        "language-model": "predicts the next token",
    }
    return f"{draft.name}: {about[draft.task]}."


def _imports(pieces: Iterable[TemplatePiece]) -> str:
    """Import lines sorted as isort does, each name once."""
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
        lines = [
            f"import {module}" for module in sorted(plain) if (module in _STANDARD) is is_standard
        ]
        lines += [
            f"from {module} import {', '.join(sorted(imported, key=_isort_key))}"
            for module, imported in sorted(names.items())
            if (module in _STANDARD) is is_standard
        ]
        blocks += ["\n".join(lines)] if lines else []
    return "\n\n".join(blocks)


def _isort_key(name: str) -> tuple[bool, str]:
    # Classes before functions and modules.
    return (not name[0].isupper(), name)
