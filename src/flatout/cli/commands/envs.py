"""`flatout envs`: the environments that flatout has made."""

from __future__ import annotations

import click


@click.command("envs")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
def command(is_json: bool) -> None:
    """List the environments that `flatout setup` has made."""
    from flatout.cli import show, show_environments
    from flatout.environments import keep

    (show.print_json if is_json else show_environments.print_environments)(keep.list_environments())
