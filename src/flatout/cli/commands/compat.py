"""`flatout compat`: the tables of builds, and how old they are."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.group("compat", invoke_without_command=True)
@json_document
@click.pass_context
def command(context: click.Context, is_json: bool) -> None:
    """Show what flatout knows about builds, drivers and cards, and how old that is."""
    if context.invoked_subcommand is None:
        from flatout.cli.render import show, show_setup
        from flatout.compat import api as compat_api

        (show.print_json if is_json else show_setup.print_compat)(compat_api.compat_state())


@command.command("update")
@json_document
def update(is_json: bool) -> None:
    """Ask the package indexes for newer builds; the tables shipped with flatout stay."""
    from flatout.cli.render import show, show_setup
    from flatout.compat import api as compat_api

    (show.print_json if is_json else show_setup.print_compat)(compat_api.update_compat())
