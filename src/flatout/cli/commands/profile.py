"""`flatout profile`: where the time of a training step goes, and what to change."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.experiment_command import ExperimentCommand, set_parameters
from flatout.cli.options import json_document

PROGRAM = "program"
# A program is run as it is: nothing of its training can be chosen here.
_FOR_EXPERIMENTS = {
    "experiment": "an experiment", "settings": "-s", "uses": "--use", "recipe": "--recipe",
    "is_proved": "--prove", "html": "--html", "python": "--python", "env": "--env",
}  # fmt: skip


class _ProfileTarget(ExperimentCommand):
    """A command for an experiment, or for a program: all that follows `--`."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Leaves the program aside, whose options are its own."""
        # What is parsed is taken out of the list.
        end = arguments.index("--") if "--" in arguments else len(arguments)
        program = tuple(arguments[end + 1 :]) if end < len(arguments) else None
        rest = super().parse_args(context, arguments[:end])
        context.params[PROGRAM] = program
        if program is not None:
            given = [name for key, name in _FOR_EXPERIMENTS.items() if context.params.get(key)]
            if context.params["device"] != "auto":
                given.append("--device")
            if given:
                message = f"{given[0]} cannot be combined with a program after --"
                raise click.UsageError(message, context)
        return rest

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """With the other form."""
        return [*super().collect_usage_pieces(context), "| [OPTIONS] -- PROGRAM..."]


@click.command("profile", cls=_ProfileTarget)
@click.argument(
    "experiment", required=False, metavar="NAME|FILE", shell_complete=completion_words.experiments
)
@set_parameters
@click.option(
    "--use", "uses", multiple=True, metavar="FIELD=VALUE", help="Set a field of the recipe."
)
@click.option(
    "--recipe", metavar="FILE", help="Use the recipe in FILE, as saved by `flatout tune`."
)
@click.option(
    "--device", default="auto", metavar="auto|cpu|cuda|cuda:N", show_default=True,
    help="Device to train on.",
)  # fmt: skip
@click.option(
    "--steps", "num_steps", type=click.IntRange(1, 1000), metavar="N",
    help="Number of steps under the profiler; by default as many as take a second.",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(["operator", "layer", "kernel", "line"]), default="operator",
    show_default=True, help="Rows of the table.",
)  # fmt: skip
@click.option(
    "--sort", type=click.Choice(["self", "total", "calls"]), default="self", show_default=True,
    help="Order of the table.",
)  # fmt: skip
@click.option(
    "--top", type=click.IntRange(1), default=10, show_default=True, metavar="N",
    help="Number of rows of the table.",
)  # fmt: skip
@click.option("--prove", "is_proved", is_flag=True, help="Measure what the advice brings.")
@click.option("--trace", metavar="FILE", help="Write a trace for Perfetto or chrome://tracing.")
@click.option("--html", metavar="FILE", help="Also write a report with charts, for a browser.")
@click.option("--python", metavar="PATH", help="Python interpreter to train with.")
@click.option("--env", metavar="NAME", help="Environment to train in (see `flatout envs`).")
@json_document
def command(is_json: bool, html: str | None, trace: str | None, **options: Any) -> int:
    """Show where the time of a training step goes, and what to change.

    NAME is a built-in experiment, FILE a Python file with a function `experiment`. Its parameters
    are also options: see `flatout profile NAME --help`. Nothing is trained that is kept.

    PROGRAM is any program that trains with PyTorch: it runs unchanged to its end, and its first
    steps are profiled. Its exit code is passed through; what it prints, too.
    """
    shown = {name: options.pop(name) for name in ("by", "sort", "top")}
    program, num_steps = options.pop(PROGRAM), options.pop("num_steps")
    if shown["by"] == "line" and shown["sort"] != "self":
        from flatout.cli.render import show
        from flatout.schema.finding import option_without_effect

        because = "lines have one time and are ordered by it"
        show.print_finding(option_without_effect("--sort", because, "leave it out"))
    if program is not None:
        from flatout.cli.flows import profile_script

        return profile_script.run(program, shown, num_steps=num_steps, trace=trace, is_json=is_json)
    from pathlib import Path

    from flatout.bench.report import check_writable
    from flatout.cli.render import show
    from flatout.cli.render.show_bench import LimitsProgress
    from flatout.cli.render.show_profile import View, print_profile
    from flatout.runs import profile as runs_profile
    from flatout.runs.profile_page import write_page
    from flatout.schema.step_profile import StepProfile
    from flatout.schema.train_request import TrainRequest

    page = Path(html).expanduser() if html is not None else None
    if page is not None:
        check_writable(page)
    is_proved = options.pop("is_proved")
    profile_command = runs_profile.ProfileCommand(
        request=TrainRequest(**options), num_steps=num_steps, trace=trace, is_proved=is_proved
    )
    report = None
    with LimitsProgress() as progress:
        for value in runs_profile.profile(profile_command):
            if isinstance(value, StepProfile):
                report = value
            else:
                progress.show(value)
    assert report is not None
    files = []
    if trace is not None:
        files.append(f"{trace}, a trace: open it at https://ui.perfetto.dev")
    if page is not None:
        write_page(page, report)
        files.append(f"{html}, a report")
    if is_json:
        show.print_json(report)
    else:
        print_profile(report, View(**shown), files)
    return 0
