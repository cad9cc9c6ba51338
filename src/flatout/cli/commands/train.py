"""`flatout train`: trains an experiment and shows its progress."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.config_option import config_file
from flatout.cli.experiment_command import ExperimentCommand, set_parameters
from flatout.cli.options import trusts_run


@click.command("train", cls=ExperimentCommand)
@click.argument(
    "experiment", required=False, metavar="NAME|FILE", shell_complete=completion_words.experiments
)
@set_parameters
@click.option(
    "--use",
    "uses",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Set a field of the recipe (how a step is executed).",
)
@click.option(
    "--recipe", metavar="FILE", help="Use the recipe in FILE, as saved by `flatout tune`."
)
@click.option(
    "--device",
    default="auto",
    metavar="auto|cpu|cuda|cuda:N",
    show_default=True,
    help="Device to train on.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    metavar="N",
    help="Total number of epochs; overrides the experiment's.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Total number of updates; overrides the experiment's length.",
)
@click.option(
    "--seed", type=click.IntRange(0), metavar="N", help="Random seed for weights and data order."
)
@click.option(
    "--init",
    metavar="WEIGHTS",
    shell_complete=completion_words.weights,
    help="Start from a safetensors file or a run's weights.",
)
@click.option(
    "--name", "run_id", metavar="ID", help="Name of the run; by default NAME-0001, NAME-0002 ..."
)
@click.option(
    "--resume", metavar="RUN", shell_complete=completion_words.runs,
    help="Resume a run; `last` is the newest.",
)  # fmt: skip
@click.option(
    "--changed", "is_changed", is_flag=True,
    help="With --resume: use the experiment's file as it is now.",
)  # fmt: skip
@click.option(
    "--dry-run", "is_dry_run", is_flag=True,
    help="Try one training step and one validation batch; save nothing.",
)  # fmt: skip
@click.option(
    "--tune",
    type=click.Choice(["auto", "off", "full"]),
    default="auto",
    show_default=True,
    help="Tune before training: auto (if it pays off), off, or full.",
)
@click.option(
    "--numerics",
    type=click.Choice(["strict", "default", "fast"]),
    default="default",
    show_default=True,
    help="How far the search may change rounding.",
)
@click.option(
    "--leave-free", metavar="SIZE", help="Memory to reserve for other programs, such as 1.5GiB."
)
@click.option(
    "--on-oom",
    type=click.Choice(["auto", "shrink", "stop"]),
    help="On out-of-memory: use smaller micro-batches, do so even with BatchNorm, or stop.",
)
@click.option(
    "--on", metavar="LAUNCHER:N",
    help="Train in N processes: local:N, torchrun:N, ray:N, cluster, http://HOST:8265.",
)  # fmt: skip
@config_file
@click.option(
    "--track", multiple=True, metavar="TRACKER[:WHERE]",
    help="Send the run to `mlflow` or `wandb`, such as mlflow:http://HOST:5000; `none` sends none.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Train in the background.")
@click.option("--python", metavar="PATH", help="Python interpreter to train with.")
@click.option("--env", metavar="NAME", help="Environment to train in (see `flatout envs`).")
@trusts_run
@click.option(
    "--json", "is_json", is_flag=True, help="Print one JSON document about the run on stdout."
)
def command(detach: bool, is_json: bool, **options: Any) -> int:
    """Train an experiment, or resume a run.

    NAME is a built-in experiment, FILE a Python file with a function `experiment`. Its parameters
    are also options: see `flatout train NAME --help`.
    """
    from flatout.cli.flows import dry_run, explain_failure
    from flatout.cli.render import show
    from flatout.cli.render.live import Display
    from flatout.cluster import api as cluster_api
    from flatout.errors import FlatoutError
    from flatout.runs import api as runs_api
    from flatout.runs import trackers
    from flatout.schema.finding import finding_from, unchanged_file
    from flatout.schema.train_request import TrainRequest

    request = TrainRequest(**options)
    for finding in request.warnings():
        show.print_finding(finding)
    request.check()
    request = show.with_trust(request, request.resume)
    if request.is_dry_run:
        return dry_run.run(request, is_json=is_json, is_detached=detach)
    screen = Display(is_quiet=is_json, is_still=detach)
    with runs_api.interrupts() as interrupts, screen as display:
        if runs_api.is_stopping(request):
            display.print_line(f"{request.resume} is stopping; waiting for it, at most 30 s")
        supervisor = cluster_api.begin(request, interrupts, is_attached=not detach)
        if supervisor.change.file is not None:
            show.print_diff(supervisor.change.file.diff)
        elif request.is_changed:
            show.print_finding(unchanged_file())
        display.open(runs_api.read(str(supervisor.folder.path)), supervisor.machine)
        was_interrupted = False
        for lines in runs_api.follow(supervisor, interrupts):
            display.take(lines)
            if detach and supervisor.has_begun:
                break
            if interrupts.count == 1 and not was_interrupted:
                was_interrupted = True
                display.print_line("stopping after this step; Ctrl-C again stops immediately")
        outcome = runs_api.conclude(supervisor)
        if outcome.finding and not interrupts.count:
            display.fail(outcome.finding)
            outcome = explain_failure.explained(outcome)
            explain_failure.print_log(outcome)
            if supervisor.is_trained:
                show.print_next_steps(show.make_console(is_error=True), outcome.run)
        else:
            display.close(runs_api.with_utilization(outcome.run), runs_api.split_of(outcome.run))
    if is_json:
        show.print_json(outcome)
    if not detach and outcome.is_kept and supervisor.is_trained:
        try:
            show.print_plots_begun(runs_api.begin_plots(outcome.run), is_error=is_json)
        except FlatoutError as error:
            show.print_finding(finding_from(error, "warning"))
        for finding in trackers.tracker_findings(outcome.run):
            show.print_finding(finding)
    return 130 if interrupts.count else outcome.exit_code
