"""`flatout undo`: reverts what flatout has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flatout.cli.options import json_document

if TYPE_CHECKING:
    from flatout.schema.change_journal import Applied


@click.command("undo")
@click.argument("change", required=False, metavar="[ID]")
@click.option("--list", "is_listing", is_flag=True, help="List the changes, newest first.")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite files that have changed since.")
@json_document
def command(
    change: str | None, is_listing: bool, is_sure: bool, is_forced: bool, is_json: bool
) -> int:
    """Undo what flatout has changed on this machine: the newest change, or change ID."""
    from flatout.cli.render import show, show_fix
    from flatout.system.changes import api as changes_api

    if is_listing:
        if change or is_sure or is_forced:
            show.print_note("warning: ID, --yes and --force have no effect with --list")
        changes = changes_api.changes()
        if is_json:
            show.print_json([{**_document(change), "change": change} for change in changes])
        else:
            show_fix.print_changes(changes)
        return 0
    show_fix.wait_for_program()
    applied = changes_api.change_to_undo(change)
    if not is_json:
        show_fix.print_undo(applied)
    # Obstacles are reported before the user is asked.
    is_blocked = not is_forced and bool(changes_api.changed_since(applied))
    if not is_sure and not is_blocked and (is_json or not show.confirm("Undo this?")):
        show.print_note("nothing was undone (--yes undoes it without asking)")
        if is_json:
            show.print_json({**_document(applied), "restore": []})
        return 1
    done = []
    for line in changes_api.undo(applied, is_forced=is_forced):
        done.append(line)
        show.print_note(line)
    if is_json:
        show.print_json({**_document(changes_api.change_to_undo(applied.id)), "restore": done})
    return 0


def _document(applied: Applied) -> dict[str, Any]:
    return {
        "id": applied.id,
        "status": applied.status,
        "at": applied.begun.at,
        "goal": applied.begun.plan.goal,
    }
