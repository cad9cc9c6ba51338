"""`flatout cluster predict`: a training on many workers, on paper."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.command("predict")
@click.argument("run", required=False, metavar="[RUN|EXPERIMENT]")
@click.option(
    "--workers", default="2,4,8", show_default=True, metavar="N,N,...", help="How many there are."
)
@click.option(
    "--link", default="10Gbps", show_default=True, metavar="RATE", help="Bandwidth between them."
)
@click.option(
    "--latency", "latency_us", type=float, default=50.0, show_default=True, metavar="MICROSECONDS",
    help="Of a message between two.",
)  # fmt: skip
@click.option(
    "--scaling", type=click.Choice(["strong", "weak"]), default="strong", show_default=True,
    help="Share the batch, or one for each.",
)  # fmt: skip
@click.option("--price", metavar="PRICE", help="Of one worker for an hour, as 2.5/h.")
@click.option("--power", metavar="WATTS", help="What one worker draws, as 350W; else as measured.")
@click.option(
    "--energy-price", metavar="PRICE", help="Of a kWh, as 0.30/kWh, where none is rented."
)
@json_document
def predict(is_json: bool, **options: Any) -> None:
    """Say what a training would take on many workers, from a run's measured step.

    Nothing is started: `flatout docs forecast` has the model.
    """
    from flatout import forecasting
    from flatout.cli import show, show_forecast
    from flatout.nouns.scaling import PredictRequest

    found = forecasting.predict(PredictRequest(**options))
    (show.print_json if is_json else show_forecast.print_forecasts)(found)
