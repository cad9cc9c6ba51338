"""`flatout data`: lists, downloads and verifies data sets."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.group("data")
def command() -> None:
    """List, download and verify data sets."""


@command.command("list")
@json_document
def list_(is_json: bool) -> None:
    """List data sets and where they are."""
    from flatout import flow
    from flatout.cli import show

    (show.print_json if is_json else show.print_data)(flow.list_data())


@command.command("get")
@click.argument("name")
@click.option(
    "--mirror", metavar="URL", help="Mirror to try first, with a folder for each data set."
)
@json_document
def get(name: str, mirror: str | None, is_json: bool) -> None:
    """Download a data set; complete files are not downloaded again."""
    from flatout import flow
    from flatout.cli import live, show

    live.show_download(name, flow.fetch_data(name, mirror))
    folder = flow.verify_data(name)
    show.print_note(f"{name} is complete: {folder}")
    if is_json:
        show.print_json({"name": name, "folder": str(folder)})


@command.command("verify")
@click.argument("name", required=False)
@json_document
def verify(name: str | None, is_json: bool) -> None:
    """Compare checksums of NAME, or of every downloaded data set."""
    from flatout import flow
    from flatout.cli import show

    names = [name] if name else [one.name for one in flow.list_data() if one.folder]
    folders = {}
    for each in names:
        folders[each] = str(flow.verify_data(each))
        show.print_note(f"{each} is complete: {folders[each]}")
    if not names:
        show.print_note("no data set is here yet: flatout data list")
    if is_json:
        show.print_json(folders)
