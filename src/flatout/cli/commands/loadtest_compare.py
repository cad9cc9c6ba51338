"""`flatout loadtest compare`: two results of load tests."""

from __future__ import annotations

import click

from flatout.cli.options import json_document


@click.command("compare")
@click.argument("first", metavar="FILE")
@click.argument("second", metavar="FILE")
@json_document
def command(first: str, second: str, is_json: bool) -> None:
    """Compare the result of a load test with that of an earlier one.

    Ratios are to the first file, with an interval from the seconds of each test.
    """
    from pathlib import Path

    from flatout.cli.render import show
    from flatout.cli.render.show_loadtest import print_comparison
    from flatout.serve import load_compare

    paths = [Path(first).expanduser(), Path(second).expanduser()]
    files = [load_compare.read_file(path) for path in paths]
    comparison = load_compare.compare(files[0], files[1], (paths[0].stem, paths[1].stem))
    if is_json:
        show.print_json(comparison)
    else:
        print_comparison(comparison)
