"""`flatout web`: the machine and its runs as pages in a browser."""

from __future__ import annotations

import click


@click.command("web")
@click.option(
    "--host", default="127.0.0.1", metavar="ADDRESS", show_default=True,
    help="Address to listen on; 0.0.0.0 is open to other computers.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8420, metavar="N", show_default=True,
    help="Port to listen on; 0 takes a free one.",
)  # fmt: skip
@click.option(
    "--token", envvar="FLATOUT_WEB_TOKEN", metavar="TEXT|@FILE",
    help="Token that a browser must show; also from FLATOUT_WEB_TOKEN. Random by default; with "
    "--read-only on this computer alone, none.",
)  # fmt: skip
@click.option("--read-only", "is_read_only", is_flag=True, help="Refuse every change.")
@click.option("--json", "is_json", is_flag=True, help="Print the address as a JSON document.")
def command(host: str, port: int, token: str | None, is_read_only: bool, is_json: bool) -> None:
    """Show this machine and its runs in a browser.

    The server runs until Ctrl-C. Nothing is loaded from other servers.
    """
    import sys

    from flatout.cli.render import show
    from flatout.schema.web_request import WebRequest
    from flatout.web import api as web_api

    request = WebRequest(
        host=host,
        port=port,
        token=None if token is None else web_api.secret_of(token),
        is_read_only=is_read_only,
    )
    with web_api.WebServer(request) as server:
        if is_json:
            show.print_json(server.ready)
        else:
            lines = [("address", server.ready.url)]
            if server.ready.needs_token:
                lines.append(("", "contains a token: keep it secret"))
            if is_read_only:
                lines.append(("read-only", "nothing can be changed"))
            show.print_lines(show.make_console(), [*lines, ("end", "Ctrl-C")])
        # A program that started this one may be waiting for the address.
        sys.stdout.flush()
        server.run()
