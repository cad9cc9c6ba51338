"""`flatout show`: everything that is known about a run."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.options import json_document


@click.command("show")
@click.argument("run", shell_complete=completion_words.runs)
@click.option(
    "--follow", is_flag=True, help="Watch the run train; Ctrl-C stops watching, not training."
)
@click.option("--tensorboard", metavar="DIR", help="Write TensorBoard event files into DIR/RUN.")
@click.option(
    "--track", metavar="TRACKER[:WHERE]",
    help="Send what `mlflow` or `wandb` lacks of the run, such as mlflow:http://HOST:5000.",
)  # fmt: skip
@click.option("--plots", is_flag=True, help="Draw the run as PNG files in its folder.")
@click.option("--recipe", is_flag=True, help="Show every field of the recipe, with reasons.")
@json_document
def command(run: str, follow: bool, recipe: bool, is_json: bool, **exports: Any) -> int:
    """Show a run: its result, metrics, recipe, and where the time went.

    RUN is an id, its beginning, `last`, or a folder with a path separator: ./folder.
    """
    from flatout.cli.render import show, wording
    from flatout.runs import api as runs_api
    from flatout.runs import trackers

    tensorboard, track, plots = exports["tensorboard"], exports["track"], exports["plots"]
    _warn_of_unused(follow=follow, recipe=recipe, is_json=is_json, exports=exports)
    if track:
        position = trackers.send_to_tracker(run, track)
        show.print_note(wording.tracker_text(position))
    if tensorboard:
        folder = runs_api.export_tensorboard(run, tensorboard, is_following=follow)
        show.print_note(f"written to {folder}; to view: tensorboard --logdir {tensorboard}")
    if tensorboard or track:
        if not is_json:
            return 0
    elif follow and not _watch(run, is_quiet=is_json):
        return 130
    record = trackers.with_trackers(
        runs_api.with_machine_use(runs_api.with_utilization(runs_api.read(run)))
    )
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


def _warn_of_unused(*, follow: bool, recipe: bool, is_json: bool, exports: dict[str, Any]) -> None:
    from flatout.cli.render import show
    from flatout.schema.finding import option_without_effect

    written = [f"--{name}" for name in ("tensorboard", "track") if exports[name]]
    others = {**dict.fromkeys(written, True), "--follow": follow, "--plots": exports["plots"],
              "--json": is_json}  # fmt: skip
    instead = next((option for option, is_given in others.items() if is_given), None)
    if recipe and instead:
        because = f"it changes the summary of the run, which {instead} does not show"
        if is_json:
            because = "the JSON document has every field anyway"
        show.print_finding(option_without_effect("--recipe", because, "leave one of them out"))
    if exports["plots"] and written and not is_json:
        because = f"{written[0]} writes only its own files"
        if written[0] == "--track":
            because = "--track draws and sends the plots itself"
        show.print_finding(option_without_effect("--plots", because, "leave one of them out"))


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
