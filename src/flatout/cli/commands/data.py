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
    from flatout.cli.render import show
    from flatout.runs import api as runs_api

    (show.print_json if is_json else show.print_data)(runs_api.list_data())


@command.command("get")
@click.argument("name")
@click.option(
    "--mirror", metavar="URL", help="URL of a mirror to try first, with one folder per data set."
)
@json_document
def get(name: str, mirror: str | None, is_json: bool) -> None:
    """Download a data set; complete files are not downloaded again."""
    from flatout.cli.render import live, show
    from flatout.runs import api as runs_api

    live.show_download(name, runs_api.fetch_data(name, mirror))
    folder = runs_api.verify_data(name)
    show.print_note(f"{name} is complete: {folder}")
    if is_json:
        show.print_json({"name": name, "folder": str(folder)})


@command.command("verify")
@click.argument("name", required=False)
@json_document
def verify(name: str | None, is_json: bool) -> None:
    """Verify the checksums of NAME, or of every downloaded data set."""
    from flatout.cli.render import show
    from flatout.runs import api as runs_api

    names = (
        [name] if name else [data_set.name for data_set in runs_api.list_data() if data_set.folder]
    )
    folders = {}
    for data_name in names:
        folders[data_name] = str(runs_api.verify_data(data_name))
        show.print_note(f"{data_name} is complete: {folders[data_name]}")
    if not names:
        show.print_note("no data sets downloaded yet: flatout data list")
    if is_json:
        show.print_json(folders)
