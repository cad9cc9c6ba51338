"""`flatout undo`: what flatout has changed, put back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flatout.cli.options import json_document

if TYPE_CHECKING:
    from flatout.nouns.journal import Applied


@click.command("undo")
@click.argument("change", required=False, metavar="[ID]")
@click.option("--list", "is_listing", is_flag=True, help="List the changes, newest first.")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@click.option("--force", "is_forced", is_flag=True, help="Overwrite what has changed since.")
@json_document
def command(
    change: str | None, is_listing: bool, is_sure: bool, is_forced: bool, is_json: bool
) -> int:
    """Undo what flatout has changed on this machine: the newest change, or change ID."""
    from flatout import mending
    from flatout.cli import show, show_fix

    if is_listing:
        if change or is_sure or is_forced:
            show.print_note(
                "warning: --list changes nothing, so that ID, --yes and --force have no effect"
            )
        found = mending.changes()
        if is_json:
            show.print_json([{**_document(one), "change": one} for one in found])
        else:
            show_fix.print_changes(found)
        return 0
    show_fix.wait_for_program()
    applied = mending.change_to_undo(change)
    if not is_json:
        show_fix.print_undo(applied)
    # What keeps it from being put back is told before anybody is asked.
    is_blocked = not is_forced and bool(mending.changed_since(applied))
    if not is_sure and not is_blocked and (is_json or not show.ask("Put this back?")):
        show.print_note("nothing was put back (--yes does it without asking)")
        if is_json:
            show.print_json({**_document(applied), "put_back": []})
        return 1
    done = []
    for line in mending.undo(applied, is_forced=is_forced):
        done.append(line)
        show.print_note(line)
    if is_json:
        show.print_json({**_document(mending.change_to_undo(applied.id)), "put_back": done})
    return 0


def _document(applied: Applied) -> dict[str, Any]:
    return {
        "id": applied.id,
        "status": applied.status,
        "at": applied.begun.at,
        "goal": applied.begun.plan.goal,
    }
