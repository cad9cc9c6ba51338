"""`flatout cluster predict`: estimates training time on many workers."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.options import json_document


@click.command("predict")
@click.argument(
    "run",
    required=False,
    metavar="[RUN|EXPERIMENT]",
    shell_complete=completion_words.runs_or_experiments,
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
    help="Split one batch among the workers (strong), or give each its own (weak).",
)  # fmt: skip
@click.option("--price", metavar="PRICE", help="Price of one worker, such as 2.5/h.")
@click.option(
    "--power",
    metavar="WATTS",
    help="Power draw of one worker, such as 350W; by default the measured one.",
)
@click.option(
    "--energy-price",
    metavar="PRICE",
    help="Price of energy for your own machines, such as 0.30/kWh.",
)
@json_document
def predict(is_json: bool, **options: Any) -> None:
    """Estimate training time on many workers from a run's measured step time.

    Nothing is started. `flatout docs forecast` explains the model.
    """
    from flatout.cli.render import show, show_forecast
    from flatout.cluster import forecast
    from flatout.cluster.model.scaling_model import PredictRequest

    forecasts = forecast.predict(PredictRequest(**options))
    (show.print_json if is_json else show_forecast.print_forecasts)(forecasts)
