"""`flatout evaluate`: the validation metrics of a run's kept weights, computed once more."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import asks_weights


@click.command("evaluate")
@click.argument("run")
@click.option(
    "-s", "settings", multiple=True, metavar="KEY=VALUE", help="Override a parameter of the run."
)
@asks_weights
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
