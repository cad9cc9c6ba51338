"""`flatout top`: what this machine and its runs do now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flatout.cli.options import json_document

if TYPE_CHECKING:
    from flatout.runs.top import TopFeed

_EVERY_S = 1.0


@click.command("top")
@click.option(
    "-i", "every_s", type=click.FloatRange(0.2, 3600.0), metavar="SECONDS",
    help="Time between two samples (default: 1).",
)  # fmt: skip
@click.option("--once", "is_once", is_flag=True, help="Print one sample and exit.")
@click.option(
    "--csv", "is_csv", is_flag=True,
    help="Print a row per GPU and one for the host, sample after sample.",
)  # fmt: skip
@click.option("--demo", "is_demo", is_flag=True, help="Show an invented machine with two GPUs.")
@json_document
def command(
    every_s: float | None, is_once: bool, is_csv: bool, is_demo: bool, is_json: bool
) -> None:
    """Show GPUs, CPUs, memory, disks and running runs, live.

    Without a terminal, or with --once, it prints one sample.
    """
    import sys

    from flatout.cli.render import show, top_text
    from flatout.errors import UsageError
    from flatout.runs.top import TopFeed
    from flatout.schema.finding import option_without_effect

    if is_json and is_csv:
        raise UsageError(
            "wrong-usage", "`--json` cannot be combined with `--csv`.", fix="give one of them"
        )
    is_single = is_json or is_once
    if every_s is not None and is_single:
        because = "only one sample is printed"
        show.print_finding(option_without_effect("-i", because, "leave it out"))
    if is_once and is_json:
        because = "--json prints one sample anyway"
        show.print_finding(option_without_effect("--once", because, "leave it out"))
    every_s = every_s or _EVERY_S
    with TopFeed("demo" if is_demo else "auto", every_s) as feed:
        if is_json:
            show.print_json(feed.take_settled())
        elif is_csv:
            _print_csv(feed, every_s, is_once=is_once)
        elif is_once or not (sys.stdin.isatty() and show.is_alive(show.make_console())):
            top_text.print_frame(feed.take_settled())
        else:
            from flatout.cli.render.top_app import TopApp
            from flatout.runs.top import end_process

            app = TopApp(feed.take, end_process, every_s)
            app.run(mouse=False)
            if app.failure is not None:
                raise app.failure


def _print_csv(feed: TopFeed, every_s: float, *, is_once: bool) -> None:
    from flatout.cli.render import top_text

    top_text.print_csv(feed.take_settled().machine, has_header=True)
    while not is_once:
        feed.wait(every_s)
        top_text.print_csv(feed.take().machine, has_header=False)
