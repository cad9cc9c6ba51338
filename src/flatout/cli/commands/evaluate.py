"""`flatout evaluate`: the validation metrics of a run's kept weights, computed once more."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import complete
from flatout.cli.experiment_command import RunCommand, set_parameters
from flatout.cli.options import asks_weights


@click.command("evaluate", cls=RunCommand)
@click.argument("run", shell_complete=complete.runs)
@set_parameters
@asks_weights
def command(on: Any, is_json: bool, **options: Any) -> int:
    """Compute the validation metrics of a run's kept weights once more.

    They are shown beside what the run recorded. The run is only read. Its parameters can be
    changed, as options or with -s: see `flatout evaluate RUN --help`.
    """
    from flatout.cli import asked, show
    from flatout.nouns.question import InferenceRequest

    request = InferenceRequest(**options)
    request = show.with_trust(request, request.run)
    shown = asked.json_evaluation if is_json else asked.print_evaluation
    return shown(request.run, asked.answers_of("evaluate", request, on))
