"""`flatout sweep`: many trainings with different parameters."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.command_group import LazyGroup
from flatout.cli.commands.sweep_show import command as show_sweep
from flatout.cli.config_option import config_file
from flatout.cli.experiment_command import ExperimentCommand
from flatout.cli.options import json_document


class _SweepCommand(ExperimentCommand, LazyGroup):
    """Takes the parameters of an experiment, and has a command below it."""


@click.command("sweep", cls=_SweepCommand, invoke_without_command=True)
@click.argument(
    "experiment", required=False, metavar="NAME|FILE", shell_complete=completion_words.experiments
)
@click.option(
    "-s", "settings", multiple=True, metavar="KEY=RANGE",
    shell_complete=completion_words.settings,
    help="Vary a parameter: A..B, A..B:log, A..B:step=C or A,B,C; a single value is fixed.",
)  # fmt: skip
@click.option(
    "--trials", "num_trials", type=click.IntRange(1, 100_000), metavar="N",
    help="Number of trials.  [default: 20; grid: all]",
)  # fmt: skip
@click.option(
    "--sampler", type=click.Choice(["tpe", "random", "grid"]),
    help="Method that chooses parameters.  [default: grid if it fits in --trials, else tpe]",
)  # fmt: skip
@click.option(
    "--pruner", type=click.Choice(["none", "median", "halving", "hyperband"]),
    default="none", show_default=True,
    help="Method that stops trials early, by their validations so far.",
)  # fmt: skip
@click.option(
    "--metric", metavar="NAME", help="Metric to compare.  [default: the experiment's `best`]"
)
@click.option(
    "--direction", type=click.Choice(["minimize", "maximize"]),
    help="Better values of the metric: smaller or larger.  [default: by its name]",
)  # fmt: skip
@click.option(
    "--parallel", type=click.IntRange(1, 1024), metavar="N",
    help="Number of trials at a time; several GPUs are divided among them.  "
         "[default: 1; with --resume, as before]",
)  # fmt: skip
@click.option(
    "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Set a field of the recipe."
)
@click.option(
    "--epochs", type=click.IntRange(1), metavar="N", help="Number of epochs of each trial."
)
@click.option(
    "--steps", type=click.IntRange(1), metavar="N", help="Number of updates of each trial."
)
@click.option(
    "--seed", type=click.IntRange(0), metavar="N",
    help="Random seed for the sampler, weights and data order.",
)  # fmt: skip
@click.option(
    "--tune", type=click.Choice(["auto", "off", "full"]),
    help="Tune before training.  [default: auto; off with --parallel above 1]",
)  # fmt: skip
@click.option(
    "--on", metavar="LAUNCHER:N",
    help="Train each trial in N processes: local:N, torchrun:N, ray:N, cluster, "
         "http://HOST:8265.",
)  # fmt: skip
@config_file
@click.option(
    "--track", multiple=True, metavar="TRACKER[:WHERE]",
    help="Send each trial to `mlflow` or `wandb`; `none` sends none.",
)  # fmt: skip
@click.option("--python", metavar="PATH", help="Python interpreter to train with.")
@click.option("--env", metavar="NAME", help="Environment to train in (see `flatout envs`).")
@click.option(
    "--name", metavar="ID",
    help="Name of the sweep; by default NAME-sweep-0001, NAME-sweep-0002 ...",
)  # fmt: skip
@click.option("--resume", metavar="SWEEP", help="Resume a sweep; `last` is the newest.")
@json_document
def command(is_json: bool, **options: Any) -> int:
    """Train an experiment many times with different parameters, and find the best.

    NAME is a built-in experiment, FILE a Python file with a function `experiment`. Each trial is a
    run. Needs `pip install 'flatout[sweep]'`.
    """
    from flatout.cli.flows import sweep
    from flatout.schema.sweep import SweepRequest, default_tuning
    from flatout.schema.train_request import TrainRequest

    names = (
        "experiment", "settings", "uses", "epochs", "steps", "seed", "tune", "on", "config",
        "track", "python", "env",
    )  # fmt: skip
    given = {name: options.pop(name) for name in names}
    given["tune"] = given["tune"] or (
        "off" if options["resume"] else default_tuning(options["parallel"])
    )
    return sweep.run(SweepRequest(training=TrainRequest(**given), **options), is_json=is_json)


command.add_command(show_sweep)
