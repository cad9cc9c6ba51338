"""`flatout show`: everything that is known about a run."""

from __future__ import annotations

import click

from flatout.cli import complete
from flatout.cli.options import json_document


@click.command("show")
@click.argument("run", shell_complete=complete.runs)
@click.option(
    "--follow", is_flag=True, help="Watch the run train; Ctrl-C stops watching, not training."
)
@click.option("--tensorboard", metavar="DIR", help="Write TensorBoard event files into DIR/RUN.")
@click.option("--plots", is_flag=True, help="Draw the run as PNG files in its folder.")
@click.option("--recipe", is_flag=True, help="Show every field of the recipe, with reasons.")
@json_document
def command(
    run: str, follow: bool, tensorboard: str | None, plots: bool, recipe: bool, is_json: bool
) -> int:
    """Show a run: its result, metrics, recipe, and where the time went.

    RUN is an id, the beginning of one, `last`, or a folder written with a separator: ./folder.
    """
    from flatout import flow
    from flatout.cli import show, wording

    if tensorboard:
        folder = flow.export_tensorboard(run, tensorboard, is_following=follow)
        show.print_note(f"written to {folder}; look at it: tensorboard --logdir {tensorboard}")
        if not is_json:
            return 0
    elif follow and not _watch(run, is_quiet=is_json):
        return 130
    found = flow.read(run)
    if plots:
        show.print_note(wording.plots_text(flow.draw_plots(found)))
    checkpoints, results = flow.checkpoint_steps(found), flow.results_of(found)
    if is_json:
        told = {"classes": results.reports, "samples": results.samples}
        head = {"run": found, "checkpoints": checkpoints, "results": told}
        show.print_long_json(head, "metrics", flow.each_metric(found))
    elif not follow and not plots:
        show.print_run(
            found, flow.milestones(found), results, checkpoints, flow.split_of(found),
            is_whole=recipe,
        )  # fmt: skip
    return 0


def _watch(text: str, *, is_quiet: bool) -> bool:
    from flatout import flow
    from flatout.cli.live import Display

    with flow.interrupts() as interrupts, Display(is_quiet=is_quiet) as display:
        run = flow.read(text)
        display.open(run, run.header.machine, is_replayed=True)
        for lines in flow.watch(text):
            display.take(lines)
            if interrupts.count:
                break
        now = flow.read(text)
        display.close(now, flow.split_of(now))
    return not interrupts.count
