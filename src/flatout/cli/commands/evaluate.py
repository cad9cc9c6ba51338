"""`flatout evaluate`: recomputes the validation metrics of a run's saved weights."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.experiment_command import RunCommand, set_parameters
from flatout.cli.options import weights_options


@click.command("evaluate", cls=RunCommand)
@click.argument("run", shell_complete=completion_words.runs)
@set_parameters
@weights_options
def command(on: Any, is_json: bool, **options: Any) -> int:
    """Recompute the validation metrics of a run's saved weights.

    They are shown next to the recorded metrics. The run itself is not modified; -s overrides
    parameters of its experiment, as their own options do: see `flatout evaluate RUN --help`.
    """
    from flatout.cli.flows import predict
    from flatout.cli.render import show
    from flatout.cluster import api as cluster_api
    from flatout.schema.predict_protocol import InferenceRequest

    request = InferenceRequest(**options)
    request = show.with_trust(request, request.run)
    shown = predict.json_evaluation if is_json else predict.print_evaluation
    return shown(request.run, cluster_api.predict_or_evaluate("evaluate", request, on))
