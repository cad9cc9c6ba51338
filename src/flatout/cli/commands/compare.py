"""`flatout compare`: runs side by side."""

from __future__ import annotations

import click

from flatout.cli import completion_words
from flatout.cli.options import json_document


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="RUN RUN...", shell_complete=completion_words.runs)
@json_document
def command(runs: tuple[str, ...], is_json: bool) -> None:
    """Compare runs: what differs, the results, and where the time went."""
    from flatout.cli.render import show, show_runs
    from flatout.runs import listing

    comparison = listing.compare(runs)
    if is_json:
        show.print_json(comparison)
    else:
        show_runs.print_comparison(comparison)
