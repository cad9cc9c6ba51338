"""`flatout disk`: what flatout keeps, and freeing it."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("disk")
@click.option(
    "--free", "kinds", multiple=True, metavar="KIND",
    help="Delete checkpoints, searches, recipes, data, environments or caches.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_document
def command(kinds: tuple[str, ...], yes: bool, is_json: bool) -> int:
    """Show what flatout keeps on this disk; delete what is named.

    A run that is being trained, and what it reads, is never touched; nor is what an unfinished run
    needs to go on.
    """
    from flatout import upkeep
    from flatout.cli import show, show_upkeep

    uses = upkeep.disk_use()
    chosen = upkeep.wanted(uses, kinds)
    if not kinds:
        (show.print_json if is_json else show_upkeep.print_disk)(uses)
        return 0
    show_upkeep.print_freeing(chosen)
    freeable = [use for use in chosen if use.freeable]
    if freeable and not yes and not show.ask("Delete this for good?"):
        show.print_note("nothing was deleted (--yes deletes without asking)")
        return 1
    freed = upkeep.free(freeable)
    show_upkeep.print_freed(freed)
    if is_json:
        show.print_json(freed)
    return 0
