"""`flatout bench platforms`: Windows, WSL2 and Linux of the same PC."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("platforms")
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option("--html", metavar="FILE", help="Also write a report with charts, for a browser.")
@json_document
def platforms(files: tuple[str, ...], html: str | None, is_json: bool) -> None:
    """Compare Windows, WSL2 and Linux on the same PC.

    Without files, prints what to run on each of them. With their files, joins them into one report:
    launch latency, copies, disks, data path and training, against Linux.
    """
    if html is not None and not files:
        raise click.UsageError("--html needs the files of at least two platforms")
    from pathlib import Path

    from flatout.bench import platforms as bench_platforms
    from flatout.cli.render import show, show_platforms

    if not files:
        plan = bench_platforms.plan()
        if is_json:
            show.print_json(plan)
        else:
            show_platforms.print_plan(plan)
        return
    report = bench_platforms.joined(
        [Path(file).expanduser() for file in files],
        None if html is None else Path(html).expanduser(),
    )
    if is_json:
        show.print_json(report)
    else:
        show_platforms.print_report(report, html)
