"""`flatout serve swap`: replaces the model of a running server."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.options import in_cluster, json_document, model_options


@click.command("swap")
@click.argument(
    "model", required=False, metavar="[NEW]", shell_complete=completion_words.runs
)  # fmt: skip
@click.option("--back", "is_back", is_flag=True, help="Return to the model of the last swap.")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N",
    help="Port of the server; needed if several are running.",
)  # fmt: skip
@model_options
@in_cluster
@json_document
def command(
    model: str | None, is_back: bool, port: int | None, on: str | None, is_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Replace the model of a running server without losing a request.

    NEW is a run or an exported file. Its replicas warm up while the old ones answer, then take
    over; the old ones finish what they have. It needs memory for both.
    """
    if (model is None) != is_back:
        raise click.UsageError("name the run or file to serve, or use --back")
    if is_back and any((on, *options.values())):
        raise click.UsageError("--back serves the last model as it was: leave out other options")
    from flatout.cli.render import show
    from flatout.cli.render.show_serve import show_swap
    from flatout.cluster import api as cluster_api
    from flatout.schema.serve_request import ModelRequest
    from flatout.serve import api as serve_api

    found = None
    if model is not None:
        request = ModelRequest(model=model, **options)
        request = show.with_trust(request, None if serve_api.is_exported(model) else model)
        found = cluster_api.model_in_cluster(request) if on == "cluster" else request
    return show_swap(serve_api.swap(found, port), is_json=is_json)
