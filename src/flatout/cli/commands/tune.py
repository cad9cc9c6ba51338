"""`flatout tune`: finds the fastest correct recipe by measuring."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.config_option import config_file
from flatout.cli.experiment_command import ExperimentCommand, set_parameters
from flatout.cli.options import json_document


@click.command("tune", cls=ExperimentCommand)
@click.argument(
    "experiment", required=False, metavar="NAME|FILE", shell_complete=completion_words.experiments
)
@set_parameters
@click.option(
    "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Set a field of the recipe."
)
@click.option(
    "--device", default="auto", metavar="auto|cpu|cuda|cuda:N", show_default=True,
    help="Device to measure on.",
)  # fmt: skip
@click.option(
    "--numerics", default="default", type=click.Choice(["strict", "default", "fast"]),
    show_default=True, help="How far the search may change rounding.",
)  # fmt: skip
@click.option(
    "--epochs",
    type=click.IntRange(1),
    metavar="N",
    help="Length of the run to speed up, in epochs.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Length of the run to speed up, in updates.",
)
@click.option(
    "--budget", type=click.FloatRange(1), metavar="SECONDS", help="Time limit of the search."
)
@click.option(
    "--leave-free", metavar="SIZE", help="Memory to reserve for other programs, such as 1.5GiB."
)
@click.option(
    "--emit",
    type=click.Choice(["code", "lightning", "hf", "accelerate"]),
    help="Print the result as a plain PyTorch program, or as settings for another tool.",
)
@click.option("--forget", is_flag=True, help="Delete all recipes found so far.")
@config_file
@click.option("--python", metavar="PATH", help="Python interpreter to tune with.")
@click.option("--env", metavar="NAME", help="Environment to tune in (see `flatout envs`).")
@json_document
def command(forget: bool, is_json: bool, **options: Any) -> int:
    """Find the fastest correct recipe by measuring: speed settings, not hyperparameters.

    NAME is a built-in experiment, FILE a Python file with a function `experiment`. Its parameters
    are also options: see `flatout tune NAME --help`.
    """
    from flatout.cli.flows import explain_failure
    from flatout.cli.render import show
    from flatout.cli.render.show_tune import SearchDisplay, print_tuned
    from flatout.runs import api as runs_api
    from flatout.schema.train_request import TrainRequest
    from flatout.schema.units import counted_text

    if forget:
        if options["experiment"]:
            raise click.UsageError(
                f"--forget deletes all recipes, not only those of {options['experiment']}"
            )
        num_forgotten = runs_api.forget_recipes()
        show.print_note(f"{counted_text(num_forgotten, 'recipe')} forgotten")
        if is_json:
            show.print_json({"forgotten": num_forgotten})
        return 0
    request = TrainRequest(**options, tune="full", is_only_tuned=True)
    display = SearchDisplay(is_quiet=is_json or request.emit is not None)
    with runs_api.interrupts() as interrupts, display:
        supervisor = runs_api.begin(request, interrupts)
        display.print_line(
            "experiment", runs_api.read(str(supervisor.folder.path)).header.spec.name
        )
        for lines in runs_api.follow(supervisor, interrupts):
            display.take(lines)
        outcome = runs_api.conclude(supervisor)
        if interrupts.count and outcome.run.status != "finished":
            display.print_line("stopped", "before a recipe was found; nothing was saved")
            return 130
        if outcome.finding:
            display.fail(outcome.finding)
            explain_failure.print_log(explain_failure.explained(outcome))
            return outcome.exit_code
        tuned = runs_api.tuned(outcome.run)
        display.close()
    if is_json:
        show.print_json(tuned)
    else:
        print_tuned(tuned)
        click.echo(tuned.code or "", nl=False)
    return 0
