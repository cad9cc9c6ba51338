"""`flatout lr`: a learning-rate range test."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.experiment_command import ExperimentCommand, set_parameters
from flatout.cli.options import json_document


@click.command("lr", cls=ExperimentCommand)
@click.argument("experiment", metavar="NAME|FILE", shell_complete=completion_words.experiments)
@set_parameters
@click.option(
    "--from", "from_lr", type=float, default=1e-7, show_default=True, metavar="LR",
    help="First learning rate.",
)  # fmt: skip
@click.option(
    "--to", "to_lr", type=float, default=10.0, show_default=True, metavar="LR",
    help="Last learning rate.",
)  # fmt: skip
@click.option(
    "--steps", "num_steps", type=int, default=100, show_default=True, metavar="N",
    help="Number of learning rates, each tried for one step.",
)  # fmt: skip
@click.option(
    "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Set a field of the recipe."
)
@click.option(
    "--recipe", metavar="FILE", help="Use the recipe in FILE, as saved by `flatout tune`."
)
@click.option(
    "--seed", type=click.IntRange(0), metavar="N", help="Random seed for weights and data order."
)
@click.option(
    "--device", default="auto", metavar="auto|cpu|cuda|cuda:N", show_default=True,
    help="Device to train on.",
)  # fmt: skip
@click.option("--python", metavar="PATH", help="Python interpreter to train with.")
@click.option("--env", metavar="NAME", help="Environment to train in (see `flatout envs`).")
@json_document
def command(is_json: bool, from_lr: float, to_lr: float, num_steps: int, **options: Any) -> int:
    """Find a learning rate: train a fresh model at larger and larger ones, a step for each.

    NAME is a built-in experiment, FILE a Python file with a function `experiment`. Its parameters
    are also options: see `flatout lr NAME --help`. The model is not kept.
    """
    from flatout.cli.render import show
    from flatout.cli.render.show_bench import LimitsProgress
    from flatout.cli.render.show_lr import print_lr_range
    from flatout.runs import lr_range as runs_lr_range
    from flatout.schema.lr_range import LrSweep
    from flatout.schema.train_request import TrainRequest

    sweep = LrSweep(from_lr=from_lr, to_lr=to_lr, num_steps=num_steps)
    kept = None
    with LimitsProgress() as progress:
        for value in runs_lr_range.lr_range(TrainRequest(**options), sweep):
            if isinstance(value, runs_lr_range.KeptLrRange):
                kept = value
            else:
                progress.show(value)
    assert kept is not None
    if is_json:
        show.print_json(kept)
    else:
        print_lr_range(kept)
    return 0
