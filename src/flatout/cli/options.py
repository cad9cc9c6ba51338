"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from flatout.cli import completion_words

Command = TypeVar("Command", bound=Callable[..., Any])

json_document = click.option(
    "--json", "is_json", is_flag=True, help="Print one JSON document on stdout."
)  # fmt: skip
trusts_run = click.option(
    "--trust", "is_trusted", is_flag=True,
    help="Trust the code in the folder of a run that is not among your runs.",
)  # fmt: skip
_experiment = click.option(
    "--experiment", metavar="NAME|FILE", shell_complete=completion_words.experiments,
    help="Experiment to build the model from, instead of the run's own copy.",
)  # fmt: skip
_uses = click.option(
    "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Set a field of the recipe."
)
_python = click.option("--python", metavar="PATH", help="Python interpreter to compute with.")
_env = click.option("--env", metavar="NAME", help="Environment to compute in (see `flatout envs`).")
in_cluster = click.option(
    "--on", type=click.Choice(["cluster"]),
    help="Compute in the `inference` service of the cluster in this folder.",
)  # fmt: skip
_MODEL_OPTIONS = (
    _experiment,
    click.option(
        "-s", "--set", "settings", multiple=True, metavar="KEY=VALUE",
        help="Set a parameter of the experiment.",
    ),
    _uses,
    _python,
    _env,
    trusts_run,
)  # fmt: skip
_WEIGHTS_OPTIONS = (
    _experiment,
    click.option(
        "--batch-size", type=click.IntRange(1), metavar="N", help="Number of samples per batch.",
    ),  # fmt: skip
    click.option(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda|cuda:N",
        show_default=True,
        help="Device to compute on; auto: the one the run was trained on.",
    ),
    _uses,
    _python,
    _env,
    in_cluster,
    trusts_run,
    json_document,
)  # fmt: skip


def address_options(port: int) -> Callable[[Command], Command]:
    """Options of commands that open a port. port: unless another one is chosen."""
    options = (
        click.option(
            "--host", default="127.0.0.1", metavar="ADDRESS", show_default=True,
            help="Address to listen on; 0.0.0.0 is open to other computers.",
        ),
        click.option(
            "--port", type=click.IntRange(0, 65535), default=port, metavar="N", show_default=True,
            help="Port to listen on; 0 takes a free one.",
        ),
    )  # fmt: skip

    def with_address(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return with_address


def token_option(variable: str, purpose: str, default: str = "") -> Callable[[Command], Command]:
    """`--token`.

    Args:
        variable: the environment variable that can have it instead.
        purpose: of the token, as the help begins.
        default: a sentence about what applies without one.
    """
    text = f"{purpose}; also from {variable}. {default}".strip()
    return click.option("--token", envvar=variable, metavar="TEXT|@FILE", help=text)


def weights_options(command: Command) -> Command:
    """Options of every command that computes with the saved weights of a run."""
    for option in reversed(_WEIGHTS_OPTIONS):
        command = option(command)
    return command


def model_options(command: Command) -> Command:
    """Options of commands about a model that is served."""
    for option in reversed(_MODEL_OPTIONS):
        command = option(command)
    return command
