"""`flatout disk`: what flatout keeps, and freeing it."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("disk")
@click.option(
    "--free", "kinds", multiple=True, metavar="KIND",
    help="Kind to delete: checkpoints, searches, recipes, data, environments, compiled, watched, "
    "results, caches or samples.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_document
def command(kinds: tuple[str, ...], yes: bool, is_json: bool) -> int:
    """Show what flatout keeps on this disk; with --free, delete it.

    Runs in training and the files they read are never touched; nor is anything that an unfinished
    run needs to resume.
    """
    from flatout.cli.render import show, show_installation
    from flatout.setup.flatout import api as flatout_api

    uses = flatout_api.disk_use()
    chosen = flatout_api.uses_to_free(uses, kinds)
    if not kinds:
        (show.print_json if is_json else show_installation.print_disk)(uses)
        return 0
    show_installation.print_freeing(chosen)
    freeable = [use for use in chosen if use.freeable]
    if freeable and not yes and not show.confirm("Delete this for good?"):
        show.print_note("nothing was deleted (--yes deletes without asking)")
        return 1
    freed = flatout_api.free(freeable)
    show_installation.print_freed(freed)
    if is_json:
        show.print_json(freed)
    return 0
