"""`flatout tune`: finds the fastest correct recipe by measuring."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


@click.command("tune")
@click.argument("experiment", required=False, metavar="NAME|FILE")
@click.option(
    "-s", "settings", multiple=True, metavar="KEY=VALUE", help="Set a parameter of the experiment."
)
@click.option(
    "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Fix a field of the recipe."
)
@click.option("--device", default="auto", metavar="auto|cpu|cuda|cuda:N", show_default=True)
@click.option("--numerics", default="default", type=click.Choice(["strict", "default", "fast"]))
@click.option(
    "--epochs", type=click.IntRange(1), metavar="N", help="Of the run that is to be made faster."
)
@click.option("--budget", type=click.FloatRange(1), metavar="SECONDS", help="What it may take.")
@click.option("--leave-free", metavar="SIZE", help="Memory that other programs are to have.")
@click.option("--emit", type=click.Choice(["code"]), help="Print a plain PyTorch program with it.")
@click.option("--forget", is_flag=True, help="Forget every recipe that was found.")
@click.option("--python", metavar="PATH", help="The interpreter that trains, in its environment.")
@click.option("--env", metavar="NAME", help="An environment of `flatout setup` that trains.")
@json_document
def command(forget: bool, is_json: bool, **options: Any) -> int:
    """Find the fastest correct recipe by measuring: speed settings, not hyperparameters.

    NAME is a built-in, FILE a Python file with a function `experiment`.
    """
    from flatout import flow
    from flatout.cli import failing, show
    from flatout.cli.show_tune import SearchDisplay, print_tuned
    from flatout.nouns.train_request import TrainRequest

    if forget:
        show.print_note(f"{flow.forget_recipes()} recipes forgotten")
        return 0
    request = TrainRequest(**options, tune="full", is_only_tuned=True)
    display = SearchDisplay(is_quiet=is_json or request.emit is not None)
    with flow.interrupts() as interrupts, display:
        attendance = flow.begin(request, interrupts)
        display.say("experiment", flow.read(str(attendance.folder.path)).header.spec.name)
        for lines in flow.follow(attendance, interrupts):
            display.take(lines)
        outcome = flow.conclude(attendance)
        if interrupts.count and outcome.run.status != "finished":
            display.say("stopped", "before a recipe was found; nothing was kept")
            return 130
        if outcome.finding:
            display.fail(outcome.finding)
            failing.print_log(failing.explained(outcome))
            return outcome.exit_code
        tuned = flow.tuned(outcome.run)
        display.close()
    if is_json:
        show.print_json(tuned)
    else:
        print_tuned(tuned)
        click.echo(tuned.code or "", nl=False)
    return 0
