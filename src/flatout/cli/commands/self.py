"""`flatout self`: where this flatout comes from, its update, its removal."""

from __future__ import annotations

import sys

import click

from flatout.cli.options import json_document

_YES = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group("self", invoke_without_command=True)
@json_document
@click.pass_context
def command(context: click.Context, is_json: bool) -> None:
    """Show how flatout was installed; update or remove it."""
    if context.invoked_subcommand and is_json:
        raise click.UsageError(f"put --json after `{context.invoked_subcommand}`")
    if context.invoked_subcommand:
        return
    from flatout.cli.render import show, show_installation
    from flatout.setup.flatout import api as flatout_api

    (show.print_json if is_json else show_installation.print_installation)(flatout_api.installed())


@command.command("update")
@click.option("--version", metavar="VERSION", help="Version to install instead of the newest.")
@click.option("--from", "file", metavar="FILE", help="Wheel or source archive to install from.")
@_YES
@json_document
def update(version: str | None, file: str | None, yes: bool, is_json: bool) -> int:
    """Install another version, the way this one was installed."""
    from flatout.cli.render import show, show_installation
    from flatout.setup.flatout import api as flatout_api

    if version and file:
        raise click.UsageError("--version and --from cannot be combined")
    planned = flatout_api.plan_update(version, file)
    show_installation.print_update(planned)
    if not yes and not show.confirm("Run it?"):
        show.print_note("nothing was changed (--yes updates without asking)")
        return 1
    done = flatout_api.update(planned)
    show_installation.print_updated(done)
    if is_json:
        show.print_json(done)
    return 0


@command.command("remove")
@click.option("--runs", "is_with_runs", is_flag=True, help="Also remove runs with their weights.")
@click.option(
    "--keep",
    multiple=True,
    metavar="KIND",
    help="Kind to keep: edits, environments, data, searches, recipes, compiled, watched, results, "
    "caches or samples.",
)
@_YES
@json_document
def remove(is_with_runs: bool, keep: tuple[str, ...], yes: bool, is_json: bool) -> int:
    """Remove flatout and its files; runs stay unless --runs is given.

    Shows everything first, then asks about each part.
    """
    from flatout.cli.render import show, show_fix, show_installation
    from flatout.setup.flatout import api as flatout_api

    show_fix.wait_for_program()
    removal = flatout_api.plan_removal(keep, is_with_runs=is_with_runs)
    show_installation.print_removal(removal)
    removed = []
    for part in removal.parts:
        if yes or show.confirm(show_installation.removal_prompt(part)):
            # Composed before: once the files are gone, no module can be loaded.
            words = show_installation.last_words(removal, part)
            left = flatout_api.remove_part(part, removal.installation)
            sys.stderr.write("".join(f"{line}\n" for line in (*left, words)))
            removed.append(part.name)
    if not removed:
        show.print_note("nothing was removed (--yes removes without asking)")
    if is_json:
        show.print_json({"removal": removal, "removed": removed})
    return 0 if removed else 1
