"""`flatout envs`: the environments that flatout has made."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("envs")
@json_document
def command(is_json: bool) -> None:
    """List the environments made by `flatout setup`."""
    from flatout.cli.render import show, show_environments
    from flatout.setup.env import manage

    (show.print_json if is_json else show_environments.print_environments)(
        manage.list_environments()
    )
