"""`flatout compare`: runs side by side."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="RUN RUN...")
@json_document
def command(runs: tuple[str, ...], is_json: bool) -> None:
    """Compare runs: what differs, the results, and where the time went."""
    from flatout import flow
    from flatout.cli import show

    comparison = flow.compare(runs)
    if is_json:
        show.print_json(comparison)
    else:
        show.print_comparison(comparison)
