"""`flatout cluster init` and `check`: the files of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

Command = TypeVar("Command", bound=Callable[..., Any])
JSON = click.option("--json", "is_json", is_flag=True, help="Print one JSON document on stdout.")
IN = click.option(
    "--in",
    "folder",
    metavar="DIR",
    help="Folder of the cluster; by default this one, or `cluster` in it.",
)
_PLACE = click.argument("place", required=False, metavar="[DIR]")


def names_folder(command: Command) -> Command:
    """Takes the cluster's folder as its argument, and as `--in` like the commands with others."""

    @functools.wraps(command)
    def named(*arguments: Any, place: str | None, folder: str | None, **options: Any) -> Any:
        if place is not None and folder is not None:
            raise click.UsageError(f"the folder is given twice: {place} and --in {folder}")
        return command(*arguments, folder=place or folder, **options)

    return cast(Command, _PLACE(IN(named)))


@click.command("init")
@names_folder
@click.option(
    "--engine", type=click.Choice(["ray", "dask", "torchrun"]), default="ray", show_default=True,
    help="Engine that schedules the work.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1, 512), default=2, show_default=True, metavar="N",
    help="Number of worker containers.",
)  # fmt: skip
@click.option(
    "--gpus", default="all", show_default=True, metavar="all|none|N",
    help="Number of workers with their own GPU.",
)  # fmt: skip
@click.option(
    "--share-gpu",
    "is_gpu_shared",
    is_flag=True,
    help="Let workers share GPUs, for work other than training; the head gets one, too.",
)
@click.option("--base-image", metavar="IMAGE", help="Base image; Python's official one by default.")
@click.option(
    "--with", "packages", multiple=True, metavar="PACKAGE", help="Additional package in the image."
)
@click.option("--force", is_flag=True, help="Overwrite edited files.")
@JSON
def init(folder: str | None, force: bool, is_json: bool, **options: Any) -> None:
    """Write the files of a cluster into DIR, for you to read and edit."""
    import msgspec

    from flatout.cli import show, show_cluster
    from flatout.clustering import files
    from flatout.errors import UsageError
    from flatout.nouns.cluster import ClusterRequest

    request, place = ClusterRequest(**options), folder or "cluster"
    try:
        written = files.init(request, place, is_forced=force)
    except UsageError as error:
        if error.rule != "gpu-would-be-shared" or is_json:
            raise
        show.print_note(f"{error.problem} {error.because}")
        if not show.ask("Share it?"):
            raise
        request = msgspec.structs.replace(request, is_gpu_shared=True)
        written = files.init(request, place, is_forced=force)
    (show.print_json if is_json else show_cluster.print_written)(written)


@click.command("check")
@names_folder
@JSON
def check(folder: str | None, is_json: bool) -> int:
    """Check the files of a cluster, and whether this machine can run it."""
    from flatout.cli import show, show_cluster
    from flatout.clustering import files

    checked = files.check(files.open_folder(folder))
    (show.print_json if is_json else show_cluster.print_checked)(checked)
    return int(any(one.severity == "error" for one in checked.findings))
