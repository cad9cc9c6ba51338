"""`flatout new`: writes a new experiment."""

from __future__ import annotations

import sys

import click

from flatout.cli.options import json_document

# As in `runs/model/new_experiment.py`, which --help does not load.
_TASKS = ("classification", "regression", "language-model")
_DATA = ("synthetic", "images", "csv", "parquet", "huggingface", "tensors", "shards", "text")


@click.command("new")
@click.argument("name")
@click.option("--task", type=click.Choice(_TASKS), help="Task to learn.")
@click.option("--data", type=click.Choice(_DATA), help="Kind of training data.")
@click.option(
    "--path", metavar="PATH", help="Path of your data; by default synthetic data is used."
)
@click.option("--target", metavar="COLUMN", help="Table column to predict.")
@click.option("--yes", is_flag=True, help="Do not ask; use the defaults.")
@click.option("--force", is_flag=True, help="Overwrite NAME.py.")
@json_document
def command(name: str, yes: bool, force: bool, is_json: bool, **options: str | None) -> None:
    """Write a new experiment: NAME.py, short, commented, and ready to train.

    On a terminal, flatout asks for the options that are missing.
    """
    from flatout.cli.render import show
    from flatout.runs import api as runs_api
    from flatout.runs.model.new_experiment import NewExperimentRequest, check_name

    is_interactive = sys.stdin.isatty() and sys.stderr.isatty() and not yes
    if is_interactive:
        from flatout.cli.flows.new_experiment import answered, settled_name

        name = settled_name(name)
    request = runs_api.recognized(NewExperimentRequest(name=check_name(name), **options))
    if is_interactive:
        request = answered(request, runs_api.proposed_task(request))
    experiment = runs_api.draft(request)
    file = runs_api.write_new(experiment, is_forced=force)
    for finding in request.warnings():
        show.print_finding(finding)
    next_command = f"flatout train {file.name}"
    if is_json:
        show.print_json({"file": str(file), "experiment": experiment, "next": next_command})
    else:
        show.print_written(file.name, experiment, next_command)
