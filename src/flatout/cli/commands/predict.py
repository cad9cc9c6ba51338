"""`flatout predict`: what the kept weights of a run say of new data."""

from __future__ import annotations

from typing import Any

import click


@click.command("predict")
@click.argument("run")
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("--output", metavar="FILE|DIR", help="Write .jsonl, .csv, .npy, or pictures.")
@click.option("--top", type=click.IntRange(1), default=1, metavar="N", help="Classes to tell.")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Samples at once.")
@click.option(
    "--device",
    default="auto",
    metavar="auto|cpu|cuda|cuda:N",
    show_default=True,
    help="Where to compute; auto is where the run was trained.",
)
@click.option(
    "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Fix a field of the recipe."
)
@click.option("--python", metavar="PATH", help="The interpreter that computes.")
@click.option("--env", metavar="NAME", help="An environment of `flatout setup` that computes.")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
def command(is_json: bool, **options: Any) -> int:
    """Predict with the kept weights of a run.

    INPUT is what the experiment reads: a file, a folder of files, a text, or `-` for the lines of
    standard input. The run is only read.
    """
    from flatout import inference
    from flatout.cli import asked
    from flatout.nouns.question import InferenceRequest

    request = InferenceRequest(**options)
    shown = asked.json_predictions if is_json else asked.print_predictions
    return shown(request.run, inference.predict(request))
