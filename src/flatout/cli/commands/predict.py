"""`flatout predict`: applies the saved weights of a run to new data."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.options import weights_options


@click.command("predict")
@click.argument("run", shell_complete=completion_words.runs)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option(
    "--output",
    metavar="FILE|DIR",
    help="Write the predictions to .jsonl, .csv or .npy, or as images.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Number of most likely classes to print.",
)
@weights_options
def command(on: Any, is_json: bool, **options: Any) -> int:
    """Predict with the saved weights of a run.

    INPUT is what the experiment reads: a file, a folder of files, a text, or `-` for the lines of
    standard input. The run is not changed.
    """
    from flatout.cli.flows import predict
    from flatout.cli.render import show
    from flatout.cluster import api as cluster_api
    from flatout.schema.predict_protocol import InferenceRequest

    request = InferenceRequest(**options)
    request = show.with_trust(request, request.run)
    shown = predict.json_predictions if is_json else predict.print_predictions
    return shown(request.run, cluster_api.predict_or_evaluate("predict", request, on))
