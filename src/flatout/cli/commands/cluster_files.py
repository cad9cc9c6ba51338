"""`flatout cluster init` and `check`: the files of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from flatout.cli.options import json_document

Command = TypeVar("Command", bound=Callable[..., Any])
IN = click.option(
    "--in",
    "folder",
    metavar="DIR",
    help="Folder of the cluster; by default the current one, or ./cluster.",
)
_DIRECTORY = click.argument("directory", required=False, metavar="[DIR]")


def names_folder(command: Command) -> Command:
    """Takes the cluster's folder as its argument, and as `--in` like the commands with others."""

    @functools.wraps(command)
    def named(*arguments: Any, directory: str | None, folder: str | None, **options: Any) -> Any:
        if directory is not None and folder is not None:
            raise click.UsageError(f"the folder is given twice: {directory} and --in {folder}")
        return command(*arguments, folder=directory or folder, **options)

    return cast(Command, _DIRECTORY(IN(named)))


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
    help="Let workers and the head share GPUs, for work other than training.",
)
@click.option("--base-image", metavar="IMAGE", help="Base image; Python's official one by default.")
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="Additional package to install in the image.",
)
@click.option("--force", is_flag=True, help="Overwrite edited files.")
@json_document
def init(folder: str | None, force: bool, is_json: bool, **options: Any) -> None:
    """Write the files of a cluster into DIR, for you to read and edit."""
    import msgspec

    from flatout.cli.render import show, show_cluster
    from flatout.cluster import files
    from flatout.cluster.model.cluster import ClusterRequest
    from flatout.errors import UsageError

    request, target = ClusterRequest(**options), folder or "cluster"
    try:
        written = files.init(request, target, is_forced=force)
    except UsageError as error:
        if error.rule != "gpu-would-be-shared" or is_json:
            raise
        show.print_note(f"{error.problem} {error.because}")
        if not show.confirm("Share it?"):
            raise
        request = msgspec.structs.replace(request, is_gpu_shared=True)
        written = files.init(request, target, is_forced=force)
    (show.print_json if is_json else show_cluster.print_written)(written)


@click.command("check")
@names_folder
@json_document
def check(folder: str | None, is_json: bool) -> int:
    """Check the files of a cluster, and whether this machine can run it."""
    from flatout.cli.render import show, show_cluster
    from flatout.cluster import files

    checked = files.check(files.open_folder(folder))
    (show.print_json if is_json else show_cluster.print_checked)(checked)
    return int(any(finding.severity == "error" for finding in checked.findings))
