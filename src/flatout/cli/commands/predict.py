"""`flatout predict`: what the kept weights of a run say of new data."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import complete
from flatout.cli.options import asks_weights


@click.command("predict")
@click.argument("run", shell_complete=complete.runs)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("--output", metavar="FILE|DIR", help="Write .jsonl, .csv, .npy, or pictures.")
@click.option(
    "--top",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Number of most likely classes to print.",
)
@asks_weights
def command(on: Any, is_json: bool, **options: Any) -> int:
    """Predict with the kept weights of a run.

    INPUT is what the experiment reads: a file, a folder of files, a text, or `-` for the lines of
    standard input. The run is only read.
    """
    from flatout.cli import asked, show
    from flatout.nouns.question import InferenceRequest

    request = InferenceRequest(**options)
    request = show.with_trust(request, request.run)
    shown = asked.json_predictions if is_json else asked.print_predictions
    return shown(request.run, asked.answers_of("predict", request, on))
