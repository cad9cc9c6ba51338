"""`flatout envs`: the environments that flatout has made."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("envs")
@json_document
def command(is_json: bool) -> None:
    """List the environments made by `flatout setup`."""
    from flatout.cli import show, show_environments
    from flatout.environments import keep

    (show.print_json if is_json else show_environments.print_environments)(keep.list_environments())
