"""The questions of `flatout new` on a terminal: one for each option that was not given."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click
import msgspec

from flatout.errors import UsageError
from flatout.runs.model.new_experiment import (
    DATA_OF,
    TABLES,
    TASKS,
    NewExperimentRequest,
    check_name,
    proposed_name,
)

_WIDTH = 76


def settled_name(name: str) -> str:
    """A valid file name: the given one, else the user's reply to a proposal."""
    try:
        return check_name(name)
    except UsageError as error:
        for line in textwrap.wrap(f"{error.problem[:-1]}: {error.because}.", _WIDTH):
            click.echo(line, err=True)
    reply: str = click.prompt("Another name", default=proposed_name(name), err=True)
    return reply.strip()


def answered(request: NewExperimentRequest, task: str) -> NewExperimentRequest:
    """The request completed with the user's input; Enter accepts the default in brackets.

    task: the default.
    """
    task = request.task or _choice("Task", TASKS, task)
    request = msgspec.structs.replace(request, task=task)
    kind = request.data or _choice("Kind of data", DATA_OF[task], request.settled_data)
    path, target = request.path, request.target
    if path is None and kind != "synthetic":
        path = _text("Path of the data (Enter: synthetic data)")
    if target is None and path is not None and kind in TABLES:
        target = _text("Column to predict (Enter: the last one)")
    return msgspec.structs.replace(request, data=kind, path=path, target=target)


def _choice(prompt: str, choices: Sequence[str], default: str) -> str:
    # On a separate line: on the same line as the question they would break within a word.
    for line in textwrap.wrap(", ".join(choices), _WIDTH, break_on_hyphens=False):
        click.echo(f"  {line}", err=True)
    reply: str = click.prompt(
        prompt, type=click.Choice(choices), default=default, err=True, show_choices=False
    )
    return reply


def _text(prompt: str) -> str | None:
    reply: str = click.prompt(prompt, default="", show_default=False, err=True)
    return reply.strip().strip("\"'") or None
