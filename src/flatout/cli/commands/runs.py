"""`flatout runs`: lists, stops and removes runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flatout.cli import completion_words
from flatout.cli.options import json_document

if TYPE_CHECKING:
    from flatout.runs.model.listed import RunRemoval


class _Runs(click.Group):
    """A group that is also a list: without a subcommand its words are names of experiments."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Words other than subcommands are kept as names."""
        if any(word in self.commands for word in arguments) or context.resilient_parsing:
            return super().parse_args(context, arguments)
        context.allow_interspersed_args = True
        click.Command.parse_args(self, context, arguments)
        context.obj, context.args = tuple(context.args), []
        return []


@click.group(
    "runs", cls=_Runs, invoke_without_command=True,
    subcommand_metavar="[EXPERIMENT]... | COMMAND [ARGS]...",
)  # fmt: skip
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only runs that match, such as 'accuracy>0.9', status=failed, lr=0.01.",
)  # fmt: skip
@click.option(
    "--sort",
    metavar="KEY",
    help="Sort by a metric, parameter or column; -KEY sorts in descending order.",
)
@json_document
@click.pass_context
def command(
    context: click.Context, conditions: tuple[str, ...], sort: str | None, is_json: bool
) -> None:
    """List runs, all or those of the given experiments; `rm` and `stop` take run ids.

    Keys are parameters, metrics of the best validation, and: run, experiment, status, epochs, step,
    duration, created, seed, device, sweep, trial.
    """
    if context.invoked_subcommand:
        for option, value in (("--json", is_json), ("--where", conditions), ("--sort", sort)):
            if value:
                raise click.UsageError(
                    f"put --json after `{context.invoked_subcommand}`" if option == "--json"
                    else f"{option} applies to the list, not to `{context.invoked_subcommand}`"
                )  # fmt: skip
        return
    from flatout.cli.render import show, show_runs
    from flatout.runs import listing
    from flatout.runs.model.listed import ListRequest

    request = ListRequest(experiments=context.obj or (), conditions=conditions, sort=sort)
    rows = listing.listed_runs(request)
    if is_json:
        show.print_json([row.document() for row in rows])
    else:
        show_runs.print_runs(rows, is_filtered=request != ListRequest())


@command.command("rm")
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completion_words.runs)
@click.option("--failed", "is_failed", is_flag=True, help="Delete all failed runs.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_document
def remove(runs: tuple[str, ...], is_failed: bool, yes: bool, is_json: bool) -> int:
    """Delete runs for good.

    Shows folders and sizes, then asks. A link is deleted, not its target.
    """
    from flatout.cli.render import show, show_runs, wording
    from flatout.runs import listing

    if bool(runs) == is_failed:
        raise click.UsageError("name the runs, or give --failed")
    found_runs = listing.failed_runs() if is_failed else listing.find_removals(runs)
    removals = [run for run in found_runs if not run.is_in_use]
    for run in found_runs:
        if run.is_in_use:
            show.print_note(f"kept {run.id}: it is being resumed")
    if removals or not found_runs:
        show_runs.print_removals(removals)
    if removals and not yes and not show.confirm(wording.removal_question(removals)):
        show.print_note("nothing was deleted (--yes deletes without asking)")
        if is_json:
            show.print_json({"deleted": []})
        return 1
    deleted = [run.id for run in removals if _is_deleted(run, is_failed=is_failed)]
    if is_json:
        in_use = {"in_use": [run.id for run in found_runs if run.id not in deleted]}
        show.print_json({"deleted": deleted, **(in_use if is_failed else {})})
    return 0


def _is_deleted(run: RunRemoval, *, is_failed: bool) -> bool:
    """Deletes a run; one that failed stays if it has been resumed in the meantime."""
    from pathlib import Path

    from flatout.cli.render import show, wording
    from flatout.errors import UsageError
    from flatout.runs import api as runs_api

    try:
        runs_api.remove(Path(run.folder))
    except UsageError as error:
        if not is_failed or error.rule != "run-in-use":
            raise
        show.print_note(f"kept {run.id}: it is being resumed")
        return False
    show.print_note(f"deleted {wording.removed_text(run)}")
    return True


@command.command("stop")
@click.argument("run", shell_complete=completion_words.runs)
@json_document
def stop(run: str, is_json: bool) -> None:
    """Stop a run after its current step, with a checkpoint."""
    from flatout.cli.render import show
    from flatout.runs import api as runs_api
    from flatout.schema.suggested_command import resume_run

    show.print_note(f"asking {run} to stop after its current step; Ctrl-C stops only the wait")
    stopped = runs_api.stop(run)
    show.print_note(f"{stopped.id}: {stopped.status}; resume it: {resume_run(stopped)}")
    if is_json:
        show.print_json(stopped)
