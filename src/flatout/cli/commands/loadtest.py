"""`flatout loadtest`: how many requests a server can take, and how fast it answers."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.command_group import LazyGroup
from flatout.cli.commands.loadtest_compare import command as compare
from flatout.cli.options import Command, json_document, token_option

_LOAD = (
    click.option(
        "--users", type=click.IntRange(1, 10_000), metavar="N",
        help="Number of clients, each of which waits for its answer.  [default: 1]",
    ),
    click.option(
        "--rate", "rate_per_s", type=click.FloatRange(0.1, 1e6), metavar="N",
        help="Requests per second, sent on a schedule whether answers come or not.",
    ),
    click.option(
        "--until-latency", metavar="TIME",
        help="Increase the load until the 99th percentile is above this, such as 50ms.",
    ),
    click.option(
        "--duration", metavar="TIME",
        help="Length of the measurement.  [default: 30s; 5s for each load with --until-latency]",
    ),
    click.option(
        "--warmup", default="2s", metavar="TIME", show_default=True,
        help="Time before each measurement in which requests do not count.",
    ),
    click.option(
        "--timeout", default="10s", metavar="TIME", show_default=True,
        help="Time after which a client gives up.",
    ),
)  # fmt: skip
_REQUEST = (
    click.option(
        "--input", metavar="FILE|JSON",
        help="Body of the requests; of a .jsonl file, each line in turn. Default: the example of a "
             "flatout server.",
    ),
    click.option("--path", metavar="PATH", help="Path of the requests.  [default: /predict]"),
    click.option(
        "--method", type=click.Choice(["POST", "GET", "PUT"]), default="POST", show_default=True,
        help="HTTP method.",
    ),
    click.option(
        "--header", "headers", multiple=True, metavar="'NAME: VALUE'",
        help="Additional header; can be repeated.",
    ),
    token_option("FLATOUT_SERVE_TOKEN", "Token of the server"),
    click.option(
        "--check", metavar="FILE|JSON",
        help="Expected answer, or the members of it that matter; of a .jsonl file, one for each "
             "input.",
    ),
)  # fmt: skip


def _request_options(command: Command) -> Command:
    """Options about what is sent, and how much of it."""
    for option in reversed((*_LOAD, *_REQUEST)):
        command = option(command)
    return command


@click.command("loadtest", cls=LazyGroup, invoke_without_command=True)
@click.argument("url", metavar="URL")
@_request_options
@click.option(
    "--output", "outputs", multiple=True, metavar="FILE",
    help="Write the result to a .json file, or a report to a .html file; can be repeated.",
)  # fmt: skip
@json_document
def command(outputs: tuple[str, ...], is_json: bool, **options: Any) -> int:
    """Send requests to a server, and measure how it answers.

    The server can be one of `flatout serve`, whose example input is used by default, or any other
    HTTP server. `flatout loadtest compare A.json B.json` compares two results.
    """
    from flatout.cli.flows import loadtest as flow
    from flatout.schema.units import parse_seconds
    from flatout.serve.load_target import LoadRequest

    if options["users"] is not None and options["rate_per_s"] is not None:
        raise click.UsageError("--users and --rate cannot be combined")
    for name in ("until_latency", "duration", "warmup", "timeout"):
        text = options.pop(name)
        option = f"--{name.replace('_', '-')}"
        options[f"{name}_s"] = None if text is None else parse_seconds(text, option)
    return flow.run(LoadRequest(**options), outputs, is_json=is_json)


command.add_command(compare)
