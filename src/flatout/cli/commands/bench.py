"""`flatout bench`: how fast this machine is."""

from __future__ import annotations

import importlib

import click

from flatout.cli.options import json_document

# Commands that are loaded when they are used, from `bench_NAME.py`.
_LAZY = ("cards", "compare", "platforms", "run", "slow-host")


class _BenchGroup(click.Group):
    """Loads most commands when they are used."""

    def list_commands(self, context: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*super().list_commands(context), *_LAZY})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Finds a command."""
        if name not in _LAZY:
            return super().get_command(context, name)
        function = name.replace("-", "_")
        module = importlib.import_module(f"flatout.cli.commands.bench_{function}")
        command: click.Command = getattr(module, function)
        return command


@click.group("bench", cls=_BenchGroup)
def command() -> None:
    """Measure this machine, and compare measurements."""


@command.command("limits")
@click.option(
    "--device", default="auto", metavar="auto|cpu|cuda|cuda:N", show_default=True,
    help="Device to measure.",
)  # fmt: skip
@click.option("--quick", "is_quick", is_flag=True, help="Measure less, in about 15 seconds.")
@click.option("--again", "is_again", is_flag=True, help="Measure even if there is a stored result.")
@click.option("--out", metavar="FILE", help="Write the result to a JSON file as well.")
@click.option("--python", metavar="PATH", help="Python interpreter with torch.")
@click.option("--env", metavar="NAME", help="Environment with torch (see `flatout envs`).")
@json_document
def limits(
    device: str,
    is_quick: bool,
    is_again: bool,
    out: str | None,
    is_json: bool,
    **interpreter: str | None,
) -> None:
    """Measure the limits of this machine, in two minutes.

    Matrix products by dtype, memory, copies, launches, all-reduce, disks and process starts, beside
    the maker's peaks. The result is stored, and shown again the next time.
    """
    from pathlib import Path

    from flatout.bench import api as bench_api
    from flatout.bench.report import check_writable
    from flatout.cli.render import show
    from flatout.cli.render.show_bench import LimitsProgress, print_limits

    if out is not None:
        check_writable(Path(out).expanduser(), "--out")
    request = bench_api.LimitsRequest(
        device=device, is_quick=is_quick, is_again=is_again, out=out, **interpreter
    )
    result = None
    with LimitsProgress() as progress:
        for value in bench_api.limits(request):
            if isinstance(value, bench_api.Limits):
                result = value
            else:
                progress.show(value)
    assert result is not None
    if is_json:
        show.print_json(result.file)
    else:
        print_limits(result)
