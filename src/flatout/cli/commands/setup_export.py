"""`flatout setup export`: an environment as files for other tools."""

from __future__ import annotations

import click

from flatout.cli.options import json_document

# As in `setup.export`, which --help does not load.
_FORMS = ("dockerfile", "compose", "devcontainer", "conda", "requirements", "vscode", "jupyter")


@click.command("export")
@click.argument("form", type=click.Choice(_FORMS), metavar="FORM")
@click.option("--env", "name", metavar="NAME", help="Environment to export (see `flatout envs`).")
@click.option(
    "--in", "folder", metavar="DIR", help="Folder to write to; by default the current one."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@json_document
def command(form: str, name: str | None, folder: str | None, force: bool, is_json: bool) -> None:
    """Export an environment for other tools; without --env, one that fits this machine.

    FORM: dockerfile, compose, devcontainer, conda, requirements, vscode or jupyter.
    """
    from pathlib import Path

    from flatout.cli.render import show, show_host_plan
    from flatout.setup.host import api as host_api

    texts, next_step = host_api.export(form, host_api.blueprint(form, name))
    paths = host_api.write_files(texts, Path(folder or "."), is_forced=force)
    show_host_plan.print_written(paths, next_step)
    if is_json:
        show.print_json({"files": texts, "written": [str(path) for path in paths]})
