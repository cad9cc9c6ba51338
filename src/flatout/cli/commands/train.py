"""`flatout train`: trains an experiment and shows how it goes."""

from __future__ import annotations

from typing import Any

import click


@click.command("train")
@click.argument("experiment", required=False, metavar="NAME|FILE")
@click.option(
    "-s", "settings", multiple=True, metavar="KEY=VALUE", help="Set a parameter of the experiment."
)
@click.option(
    "--use",
    "uses",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Fix a field of the recipe: how a step is executed.",
)
@click.option("--recipe", metavar="FILE", help="Fix all fields, as `flatout tune` has found them.")
@click.option(
    "--device",
    default="auto",
    metavar="auto|cpu|cuda|cuda:N",
    show_default=True,
    help="Where to train.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    metavar="N",
    help="Epochs in all, instead of its own number.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Updates in all, instead of its own length.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Of weights and order.")
@click.option("--init", metavar="WEIGHTS", help="Begin with a safetensors file or a run's weights.")
@click.option("--name", "run_id", metavar="ID", help="Name of the run, else NAME-0001 and so on.")
@click.option("--resume", metavar="RUN", help="Go on with a run; `last` is the newest.")
@click.option(
    "--changed", "is_changed", is_flag=True,
    help="With --resume: go on with the experiment's file as it is now.",
)  # fmt: skip
@click.option(
    "--dry-run", "is_dry_run", is_flag=True,
    help="Try one training step and one validation batch; keep nothing.",
)  # fmt: skip
@click.option(
    "--tune",
    type=click.Choice(["auto", "off", "full"]),
    default="auto",
    show_default=True,
    help="Search the fastest recipe first: as far as it pays, not at all, or whatever it takes.",
)
@click.option(
    "--numerics",
    type=click.Choice(["strict", "default", "fast"]),
    default="default",
    show_default=True,
    help="How far the search may change rounding.",
)
@click.option("--leave-free", metavar="SIZE", help="Memory that other programs are to have.")
@click.option(
    "--on-oom",
    type=click.Choice(["auto", "shrink", "stop"]),
    help="When memory runs out: go on with less, also with BatchNorm, or end.",
)
@click.option(
    "--on", metavar="LAUNCHER:N",
    help="Train in N processes: local:N, torchrun:N, ray:N, cluster, http://HOST:8265.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Let it train on when this command has ended.")
@click.option("--python", metavar="PATH", help="The interpreter that trains, in its environment.")
@click.option("--env", metavar="NAME", help="An environment of `flatout setup` that trains.")
@click.option("--json", "is_json", is_flag=True, help="One JSON document about the run on stdout.")
def command(detach: bool, is_json: bool, **options: Any) -> int:
    """Train an experiment, or go on with a run.

    NAME is a built-in, FILE a Python file with a function `experiment`.
    """
    from flatout import flow
    from flatout.cli import dry_run, failing, show
    from flatout.cli.live import Display
    from flatout.errors import FlatoutError
    from flatout.nouns.finding import finding_from, unchanged_file
    from flatout.nouns.train_request import TrainRequest

    request = TrainRequest(**options)
    for finding in request.warnings():
        show.print_finding(finding)
    if request.is_dry_run:
        return dry_run.run(request, is_json=is_json, is_detached=detach)
    screen = Display(is_quiet=is_json, is_still=detach)
    with flow.interrupts() as interrupts, screen as display:
        if flow.is_stopping(request):
            display.say(f"{request.resume} has been asked to stop: waiting for it, at most 30 s")
        if request.placement and request.placement.place:
            from flatout.clustering import training

            attendance = training.begin(request, interrupts)
        else:
            attendance = flow.begin(request, interrupts, is_attached=not detach)
        if attendance.change.file is not None:
            show.print_diff(attendance.change.file.diff)
        elif request.is_changed:
            show.print_finding(unchanged_file())
        display.open(flow.read(str(attendance.folder.path)), attendance.machine)
        was_interrupted = False
        for lines in flow.follow(attendance, interrupts):
            display.take(lines)
            if detach and attendance.has_begun:
                break
            if interrupts.count == 1 and not was_interrupted:
                was_interrupted = True
                display.say("stopping after this step; Ctrl-C again stops at once")
        outcome = flow.conclude(attendance)
        if outcome.finding and not interrupts.count:
            display.fail(outcome.finding)
            outcome = failing.explained(outcome)
            if attendance.is_trained:
                show.print_next_steps(show.make_console(is_error=True), outcome.run)
        else:
            display.close(outcome.run, flow.split_of(outcome.run))
    if is_json:
        show.print_json(outcome)
    if not detach and attendance.is_trained and flow.can_draw():
        # After everything else is said: it takes a second, and is never worth a run.
        try:
            show.print_plots(flow.draw_plots(outcome.run), is_error=is_json)
        except FlatoutError as error:
            show.print_finding(finding_from(error, "warning"))
        except KeyboardInterrupt:
            pass
    return 130 if interrupts.count else outcome.exit_code
