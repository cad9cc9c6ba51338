"""`flatout show`: everything that is known about a run."""

from __future__ import annotations

import click

from flatout.cli import completion_words
from flatout.cli.options import json_document


@click.command("show")
@click.argument("run", shell_complete=completion_words.runs)
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

    RUN is an id, its beginning, `last`, or a folder with a path separator: ./folder.
    """
    from flatout.cli.render import show, wording
    from flatout.runs import api as runs_api
    from flatout.schema.finding import option_without_effect

    others = {"--tensorboard": bool(tensorboard), "--follow": follow, "--plots": plots,
              "--json": is_json}  # fmt: skip
    instead = next((option for option, is_given in others.items() if is_given), None)
    if recipe and instead:
        because = f"it changes the summary of the run, which {instead} does not show"
        if is_json:
            because = "the JSON document has every field anyway"
        show.print_finding(option_without_effect("--recipe", because, "leave one of them out"))
    if plots and tensorboard and not is_json:
        because = "--tensorboard writes only its own files"
        show.print_finding(option_without_effect("--plots", because, "leave one of them out"))
    if tensorboard:
        folder = runs_api.export_tensorboard(run, tensorboard, is_following=follow)
        show.print_note(f"written to {folder}; to view: tensorboard --logdir {tensorboard}")
        if not is_json:
            return 0
    elif follow and not _watch(run, is_quiet=is_json):
        return 130
    record = runs_api.with_machine_use(runs_api.with_utilization(runs_api.read(run)))
    if plots:
        show.print_note(wording.plots_text(runs_api.draw_plots(record)))
    checkpoints, results = runs_api.checkpoint_steps(record), runs_api.results_of(record)
    if is_json:
        reports = {"classes": results.reports, "samples": results.samples}
        head = {"run": record, "checkpoints": checkpoints, "results": reports}
        show.print_long_json(head, "metrics", runs_api.each_metric(record))
    elif not follow and not plots:
        show.print_run(
            record, runs_api.milestones(record), results, checkpoints, runs_api.split_of(record),
            is_whole=recipe,
        )  # fmt: skip
    return 0


def _watch(text: str, *, is_quiet: bool) -> bool:
    from flatout.cli.render.live import Display
    from flatout.runs import api as runs_api

    with runs_api.interrupts() as interrupts, Display(is_quiet=is_quiet) as display:
        run = runs_api.read(text)
        display.open(run, run.header.machine, is_replayed=True)
        for lines in runs_api.watch(text):
            display.take(lines)
            if interrupts.count:
                break
        now = runs_api.with_utilization(runs_api.read(text))
        display.close(now, runs_api.split_of(now))
    return not interrupts.count
