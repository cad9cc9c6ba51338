"""`flatout serve`: a run or an exported file that answers requests over HTTP."""

from __future__ import annotations

import re
from typing import Any

import click

from flatout.cli import completion_words
from flatout.cli.command_group import LazyGroup
from flatout.cli.commands.serve_swap import command as swap
from flatout.cli.options import address_options, model_options, token_option

# With a single colon, it would have a port: an IPv6 address has at least two.
_HOST_NAME = re.compile(r"\*|(\*\.)?[\w.-]+|[0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*")


def _number_or_auto(
    context: click.Context, option: click.Parameter, text: str
) -> int | None:  # fmt: skip
    """A number from 1; None for `auto`."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise click.BadParameter(f"`{text}` is not a number from 1, or auto.")
    return int(text)


def _host_names(
    context: click.Context, option: click.Parameter, text: str
) -> tuple[str, ...]:  # fmt: skip
    """Names in lower case, from a text with commas."""
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise click.BadParameter(
                f"`{name}` is not the name of a host, such as api.example.com."
            )  # fmt: skip
    return names


@click.command("serve", cls=LazyGroup, invoke_without_command=True)
@click.argument("model", metavar="RUN|FILE", shell_complete=completion_words.runs)
@click.option(
    "--replicas", "num_replicas", default="auto", metavar="N|auto", show_default=True,
    callback=_number_or_auto,
    help="Number of processes that compute; auto: one for each GPU, or by the CPU's cores.",
)  # fmt: skip
@click.option(
    "--device", default="auto", metavar="auto|cpu|cuda|cuda:N", show_default=True,
    help="Device to compute on; auto: the one the run was trained on.",
)  # fmt: skip
@click.option(
    "--batch", "max_samples", default="auto", metavar="N|auto", show_default=True,
    callback=_number_or_auto, help="Most samples in a batch; auto: by measuring, within --latency.",
)  # fmt: skip
@click.option(
    "--latency", default="20ms", metavar="TIME", show_default=True,
    help="Longest time that a batch should take.",
)  # fmt: skip
@address_options(port=8000)
@click.option(
    "--allowed-hosts", default="", metavar="NAME,...", callback=_host_names,
    help="More host names that clients may use; * allows all, *.example.com those below.",
)  # fmt: skip
@token_option("FLATOUT_SERVE_TOKEN", "Token that clients must send")
@click.option(
    "--max-queue", type=click.IntRange(1), default=1024, metavar="N", show_default=True,
    help="Number of requests that may wait; more are refused.",
)  # fmt: skip
@click.option(
    "--timeout", default="30s", metavar="TIME", show_default=True,
    help="Longest time that a request may take.",
)  # fmt: skip
@model_options
@click.option(
    "--on", type=click.Choice(["cluster", "ray"]),
    help="Compute in the `inference` service of the cluster in this folder, or on Ray Serve.",
)  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="Print what happens as lines of JSON.")
@click.pass_context
def command(context: click.Context, /, is_json: bool, **options: Any) -> None:
    """Answer requests with the saved weights of a run, over HTTP.

    FILE is an exported model (.onnx, .pt2). The server runs until Ctrl-C; then it finishes the
    requests that it has accepted. `flatout serve swap NEW` replaces the model while it runs.
    """
    from flatout.cli.render import show
    from flatout.cli.render.show_serve import ServeDisplay
    from flatout.cluster import api as cluster_api
    from flatout.schema.serve_request import ModelRequest, ServeRequest
    from flatout.schema.units import parse_seconds
    from flatout.serve import api as serve_api

    token, on = options.pop("token"), options.pop("on")
    latency_s = parse_seconds(options.pop("latency"), "--latency")
    timeout_s = parse_seconds(options.pop("timeout"), "--timeout")
    own = {name: options.pop(name) for name in ("num_replicas", "max_samples", "host", "port",
                                                "allowed_hosts", "max_queue")}  # fmt: skip
    request = ServeRequest(
        **own,
        latency_s=latency_s,
        timeout_s=timeout_s,
        token=None if token is None else serve_api.secret_of(token),
    )
    model = ModelRequest(**options)
    model = show.with_trust(model, None if serve_api.is_exported(model.model) else model.model)
    with serve_api.interrupts() as interrupts, ServeDisplay(is_json=is_json) as display:
        if on == "ray":
            events = serve_api.serve_on_ray(model, request, interrupts)
        else:
            found = cluster_api.model_in_cluster(model) if on == "cluster" else model
            events = serve_api.serve(found, request, interrupts)
        for event in events:
            display.take(event)


command.add_command(swap)
