"""`flatout runs`: lists, stops and removes runs."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.group("runs", invoke_without_command=True)
@json_document
@click.pass_context
def command(context: click.Context, is_json: bool) -> None:
    """List runs; `rm` and `stop` take their ids."""
    if context.invoked_subcommand and is_json:
        raise click.UsageError(f"--json belongs behind `{context.invoked_subcommand}`")
    if context.invoked_subcommand:
        return
    from flatout import flow
    from flatout.cli import show

    (show.print_json if is_json else show.print_runs)(flow.list_runs())


@command.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_document
def remove(runs: tuple[str, ...], yes: bool, is_json: bool) -> int:
    """Delete runs for good."""
    from flatout import flow
    from flatout.cli import show

    folders = {folder.name: folder for folder in map(flow.find, runs)}
    if not yes and not show.ask(f"Delete {', '.join(folders)} for good?"):
        show.print_note("nothing was deleted (--yes deletes without asking)")
        return 1
    for run_id, folder in folders.items():
        flow.remove(folder)
        show.print_note(f"deleted {run_id}")
    if is_json:
        show.print_json({"deleted": list(folders)})
    return 0


@command.command("stop")
@click.argument("run")
@json_document
def stop(run: str, is_json: bool) -> None:
    """Stop a run after its step, with a checkpoint."""
    from flatout import flow
    from flatout.cli import show

    show.print_note(f"asking {run} to stop after its step; Ctrl-C ends only the waiting")
    stopped = flow.stop(run)
    show.print_note(f"{stopped.id}: {stopped.status}; go on: flatout train --resume {stopped.id}")
    if is_json:
        show.print_json(stopped)
