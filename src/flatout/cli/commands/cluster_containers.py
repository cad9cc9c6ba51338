"""`flatout cluster up`, `status`, `logs`, `scale`, `stop`, `down`: a cluster's containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flatout.cli.commands.cluster_files import IN, names_folder
from flatout.cli.options import json_document

if TYPE_CHECKING:
    from flatout.cluster.model.cluster import ClusterState

_LIMIT = click.option(
    "--limit", "limit_s", type=click.FloatRange(min=1), default=180.0, show_default=True,
    metavar="SECONDS", help="Time to wait for all containers to be healthy.",
)  # fmt: skip


@click.command("up")
@_LIMIT
@names_folder
@json_document
def up(limit_s: float, folder: str | None, is_json: bool) -> int:
    """Build the image, start the containers, and wait until all are healthy."""
    from flatout.cli.render import show
    from flatout.cli.render.live import Waiting
    from flatout.cli.render.show_cluster import waiting_text
    from flatout.cluster import containers, files

    opened, waiting = files.open_folder(folder), Waiting("")
    try:
        state = containers.up(
            opened, limit_s=limit_s, on_wait=lambda states: waiting.update(waiting_text(states)),
            on_warning=show.print_finding,
        )  # fmt: skip
    finally:
        waiting.stop()
    return _report(state, is_json=is_json)


@click.command("status")
@names_folder
@json_document
def status(folder: str | None, is_json: bool) -> int:
    """Show nodes, their limits, versions, and addresses to open."""
    from flatout.cluster import containers, files

    return _report(containers.state(files.open_folder(folder)), is_json=is_json)


@click.command("logs")
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
@click.option("--follow", is_flag=True, help="Keep printing new output.")
@click.option("--tail", type=click.IntRange(0), default=100, show_default=True, metavar="N",
              help="Number of lines to print per container.")  # fmt: skip
@IN
def logs(services: tuple[str, ...], follow: bool, tail: int, folder: str | None) -> None:
    """Print the output of the containers."""
    from flatout.cluster import containers, files

    containers.show_logs(files.open_folder(folder), services, is_following=follow, tail=tail)


@click.command("scale")
@click.argument("num_workers", type=click.IntRange(0, 512), metavar="N")
@_LIMIT
@names_folder
@json_document
def scale(num_workers: int, limit_s: float, folder: str | None, is_json: bool) -> int:
    """Run N workers without a GPU; GPU workers stay as they are."""
    from flatout.cli.render import show
    from flatout.cli.render.live import Waiting
    from flatout.cli.render.show_cluster import waiting_text
    from flatout.cluster import containers, files

    opened, waiting = files.open_folder(folder), Waiting("")
    try:
        state = containers.scale(
            opened, num_workers, limit_s=limit_s,
            on_wait=lambda states: waiting.update(waiting_text(states)),
            on_warning=show.print_finding,
        )  # fmt: skip
    finally:
        waiting.stop()
    return _report(state, is_json=is_json)


@click.command("stop")
@names_folder
@json_document
def stop(folder: str | None, is_json: bool) -> None:
    """Stop the containers; `up` starts them again."""
    from flatout.cli.render import show
    from flatout.cluster import containers, files

    stopped = containers.stop(files.open_folder(folder))
    if is_json:
        show.print_json(stopped)


@click.command("down")
@click.option("--volumes", is_flag=True, help="Also remove the cluster's Docker volumes.")
@names_folder
@json_document
def down(volumes: bool, folder: str | None, is_json: bool) -> None:
    """Remove the containers and their network; runs and data stay."""
    from flatout.cli.render import show, show_cluster
    from flatout.cluster import containers, files

    kept_by_down = containers.down(files.open_folder(folder), is_with_volumes=volumes)
    (show.print_json if is_json else show_cluster.print_kept)(kept_by_down)


def _report(state: ClusterState, *, is_json: bool) -> int:
    from flatout.cli.render import show, show_cluster

    (show.print_json if is_json else show_cluster.print_state)(state)
    is_wrong = any(finding.severity == "error" for finding in state.findings)
    return int(is_wrong or not all(container.is_well for container in state.containers))
