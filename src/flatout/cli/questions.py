"""What `flatout new` asks on a terminal: whatever was not given as an option."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click
import msgspec

from flatout.nouns.sketch import DATA_OF, TABLES, TASKS, SketchRequest


def answered(request: SketchRequest) -> SketchRequest:
    """A request with the person's answers in it; Enter takes what stands in brackets."""
    task = request.task or _choice("Task", TASKS, request.settled_task)
    request = msgspec.structs.replace(request, task=task)
    kind = request.data or _choice("Kind of data", DATA_OF[task], request.settled_data)
    path, target = request.path, request.target
    if path is None and kind != "synthetic":
        path = _text("Path of the data (Enter: synthetic data for now)")
    if target is None and path is not None and kind in TABLES:
        target = _text("Column to predict (Enter: the last one)")
    return msgspec.structs.replace(request, data=kind, path=path, target=target)


def _choice(question: str, choices: Sequence[str], default: str) -> str:
    # On lines of their own: a long list beside the question would be broken inside a word.
    listed = textwrap.fill(", ".join(choices), 76, initial_indent="  ", subsequent_indent="  ")
    answer: str = click.prompt(
        f"{question}:\n{listed}\n ", type=click.Choice(choices), default=default,
        show_choices=False, err=True,
    )  # fmt: skip
    return answer


def _text(question: str) -> str | None:
    answer: str = click.prompt(question, default="", show_default=False, err=True)
    return answer.strip().strip("\"'") or None
