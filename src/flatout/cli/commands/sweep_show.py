"""`flatout sweep show`: the trials of a sweep, and the best of them."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("show")
@click.argument("sweep", metavar="SWEEP")
@click.option("--plots", "has_plots", is_flag=True, help="Draw its pictures again.")
@json_document
def command(sweep: str, has_plots: bool, is_json: bool) -> None:
    """Show a sweep: its trials, the best first, and which parameters matter.

    SWEEP is its name, the beginning of it, or `last`.
    """
    from flatout.cli.flows import sweep as flow

    flow.show_sweep(sweep, has_plots=has_plots, is_json=is_json)
