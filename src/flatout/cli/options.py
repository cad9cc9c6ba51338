"""Options that several commands have, so that they are called and explained alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from flatout.cli import complete

Command = TypeVar("Command", bound=Callable[..., Any])

json_document = click.option(
    "--json", "is_json", is_flag=True, help="Print one JSON document on stdout."
)  # fmt: skip
trusts_run = click.option(
    "--trust", "is_trusted", is_flag=True,
    help="Run the code of a run's folder that is not among your runs.",
)  # fmt: skip
_ASKING = (
    click.option(
        "--experiment", metavar="NAME|FILE", shell_complete=complete.experiments,
        help="Experiment to build the model with, instead of the one the run keeps.",
    ),  # fmt: skip
    click.option(
        "--batch-size", type=click.IntRange(1), metavar="N", help="Number of samples per batch.",
    ),  # fmt: skip
    click.option(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda|cuda:N",
        show_default=True,
        help="Device to compute on; auto is the one the run was trained on.",
    ),
    click.option(
        "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Fix a field of the recipe."
    ),
    click.option("--python", metavar="PATH", help="Python interpreter to compute with."),
    click.option(
        "--env", metavar="NAME", help="Environment made by `flatout setup` to compute in."
    ),
    click.option(
        "--on", type=click.Choice(["cluster"]),
        help="Compute in the cluster of this folder, in its `inference` service.",
    ),
    trusts_run,
    json_document,
)  # fmt: skip


def asks_weights(command: Command) -> Command:
    """What every command can be told that computes with the kept weights of a run."""
    for option in reversed(_ASKING):
        command = option(command)
    return command
