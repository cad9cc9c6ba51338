"""`flatout setup export`: an environment as files for other tools."""

from __future__ import annotations

import click

from flatout.cli.options import json_document

# As in `setup.export`, which --help does not load.
_FORMS = ("dockerfile", "compose", "devcontainer", "conda", "requirements", "vscode", "jupyter")


@click.command("export")
@click.argument("form", type=click.Choice(_FORMS), metavar="FORM")
@click.option(
    "--env", "name", metavar="NAME", help="Environment made by `flatout setup` to export."
)
@click.option("--in", "folder", metavar="DIR", help="Folder to write into; this one by default.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@json_document
def command(form: str, name: str | None, folder: str | None, force: bool, is_json: bool) -> None:
    """Write an environment as files for other tools; without --env what fits this machine.

    FORM: dockerfile, compose, devcontainer, conda, requirements, vscode or jupyter.
    """
    from pathlib import Path

    from flatout import groundwork
    from flatout.cli import show, show_groundwork

    texts, next_step = groundwork.export(form, groundwork.blueprint(form, name))
    paths = groundwork.write_files(texts, Path(folder or "."), is_forced=force)
    show_groundwork.print_written(paths, next_step)
    if is_json:
        show.print_json({"files": texts, "written": [str(path) for path in paths]})
