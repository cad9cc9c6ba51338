"""`flatout cluster predict`: a training on many workers, on paper."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import complete
from flatout.cli.options import json_document


@click.command("predict")
@click.argument(
    "run", required=False, metavar="[RUN|EXPERIMENT]", shell_complete=complete.runs_or_experiments
)
@click.option(
    "--workers", default="2,4,8", show_default=True, metavar="N,N,...", help="Number of workers."
)
@click.option(
    "--link", default="10Gbps", show_default=True, metavar="RATE", help="Bandwidth between workers."
)
@click.option(
    "--latency", "latency_us", type=float, default=50.0, show_default=True, metavar="MICROSECONDS",
    help="Latency of a message between two workers.",
)  # fmt: skip
@click.option(
    "--scaling", type=click.Choice(["strong", "weak"]), default="strong", show_default=True,
    help="Split one batch among the workers, or give each its own.",
)  # fmt: skip
@click.option("--price", metavar="PRICE", help="Price of one worker, such as 2.5/h.")
@click.option(
    "--power", metavar="WATTS", help="Power of one worker, such as 350W; as measured by default."
)
@click.option(
    "--energy-price",
    metavar="PRICE",
    help="Price of energy, such as 0.30/kWh, for machines of your own.",
)
@json_document
def predict(is_json: bool, **options: Any) -> None:
    """Predict how long a training takes on many workers, from a run's measured step.

    Nothing is started: `flatout docs forecast` has the model.
    """
    from flatout import forecasting
    from flatout.cli import show, show_forecast
    from flatout.nouns.scaling import PredictRequest

    found = forecasting.predict(PredictRequest(**options))
    (show.print_json if is_json else show_forecast.print_forecasts)(found)
