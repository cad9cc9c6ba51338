"""`flatout evaluate`: the validation metrics of a run's kept weights, computed once more."""

from __future__ import annotations

from typing import Any

import click


@click.command("evaluate")
@click.argument("run")
@click.option(
    "-s", "settings", multiple=True, metavar="KEY=VALUE", help="Another parameter than the run's."
)
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
    """Compute the validation metrics of a run's kept weights once more.

    They are shown beside what the run recorded. The run is only read.
    """
    from flatout import inference
    from flatout.cli import asked
    from flatout.nouns.question import InferenceRequest

    request = InferenceRequest(**options)
    shown = asked.json_evaluation if is_json else asked.print_evaluation
    return shown(request.run, inference.evaluate(request))
