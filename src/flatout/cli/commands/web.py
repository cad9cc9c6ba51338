"""`flatout web`: the machine and its runs as pages in a browser."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.options import address_options, token_option

# A server's options, and those of a copy.
_OF_SERVER = {"host": "--host", "port": "--port", "token": "--token", "is_read_only": "--read-only"}
_OF_COPY = {"runs": "--run", "conditions": "--where"}


@click.command("web")
@address_options(port=8420)
@token_option(
    "FLATOUT_WEB_TOKEN", "Token that a browser must show",
    "Random by default; with --read-only on this computer alone, none.",
)  # fmt: skip
@click.option("--read-only", "is_read_only", is_flag=True, help="Refuse every change.")
@click.option(
    "--export", "folder", metavar="DIR",
    help="Copy runs into a new folder as pages that need no server, and exit.",
)  # fmt: skip
@click.option(
    "--run", "runs", multiple=True, metavar="RUN", shell_complete=completion_words.runs,
    help="Run to export.",
)  # fmt: skip
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Export runs that match, as in `flatout runs --where`.",
)  # fmt: skip
@click.option(
    "--json", "is_json", is_flag=True, help="Print the address or the copy as a JSON document."
)
@click.pass_context
def command(context: click.Context, /, folder: str | None, is_json: bool, **options: Any) -> None:
    """Show this machine and its runs in a browser.

    The server runs until Ctrl-C. Nothing is loaded from other servers.
    """
    source = context.get_parameter_source
    given = {name for name in options if source(name) is click.core.ParameterSource.COMMANDLINE}
    if folder is None:
        for name in sorted(given & _OF_COPY.keys()):
            raise click.UsageError(f"{_OF_COPY[name]} needs --export")
        _serve({name: options[name] for name in _OF_SERVER}, is_json=is_json)
        return
    for name in sorted(given & _OF_SERVER.keys()):
        raise click.UsageError(f"{_OF_SERVER[name]} cannot be combined with --export")
    if not given:
        raise click.UsageError("choose the runs to export: --run RUN or --where CONDITION")
    _export(folder, {name: options[name] for name in _OF_COPY}, is_json=is_json)


def _export(folder: str, chosen: dict[str, Any], *, is_json: bool) -> None:
    from flatout.cli.render import show
    from flatout.cli.render.wording import home_text
    from flatout.schema.units import count_text
    from flatout.schema.web_request import WebExport
    from flatout.web import api as web_api

    done = web_api.export(WebExport(folder=folder, **chosen))
    if is_json:
        show.print_json(done)
        return
    lines = [("runs", count_text(len(done.runs))), ("open", home_text(done.first))]
    show.print_lines(show.make_console(), lines)


def _serve(options: dict[str, Any], *, is_json: bool) -> None:
    import sys

    from flatout.cli.render import show
    from flatout.schema.web_request import WebRequest
    from flatout.web import api as web_api

    token = options["token"]
    request = WebRequest(**options | {"token": None if token is None else web_api.secret_of(token)})
    with web_api.WebServer(request) as server:
        if is_json:
            show.print_json(server.ready)
        else:
            lines = [("address", server.ready.url)]
            if server.ready.needs_token:
                lines.append(("", "contains a token: keep it secret"))
            if request.is_read_only:
                lines.append(("read-only", "nothing can be changed"))
            show.print_lines(show.make_console(), [*lines, ("end", "Ctrl-C")])
        # A program that started this one may be waiting for the address.
        sys.stdout.flush()
        goal = server.run()
    if goal is not None and not is_json:
        waiting = f"for a change to this machine to end: {goal}; Ctrl-C interrupts it"
        show.print_lines(show.make_console(), [("waiting", waiting)])
