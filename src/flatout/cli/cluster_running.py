"""`flatout cluster up`, `status`, `logs`, `scale`, `stop`, `down`: a cluster's containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flatout.cli.cluster_files import IN, JSON, names_folder

if TYPE_CHECKING:
    from flatout.nouns.cluster import ClusterState

_LIMIT = click.option(
    "--limit", "limit_s", type=click.FloatRange(min=1), default=180.0, show_default=True,
    metavar="SECONDS", help="Time to wait until all containers are healthy.",
)  # fmt: skip


@click.command("up")
@_LIMIT
@names_folder
@JSON
def up(limit_s: float, folder: str | None, is_json: bool) -> int:
    """Build the image, start the containers, and wait until all are healthy."""
    from flatout.cli import show
    from flatout.cli.live import Waiting
    from flatout.cli.show_cluster import waiting_text
    from flatout.clustering import files, running

    opened, waiting = files.open_folder(folder), Waiting("")
    try:
        state = running.up(
            opened, limit_s=limit_s, on_wait=lambda found: waiting.say(waiting_text(found)),
            on_warning=show.print_finding,
        )  # fmt: skip
    finally:
        waiting.stop()
    return _tell(state, is_json=is_json)


@click.command("status")
@names_folder
@JSON
def status(folder: str | None, is_json: bool) -> int:
    """Show nodes, their limits, versions, and addresses to open."""
    from flatout.clustering import files, running

    return _tell(running.state(files.open_folder(folder)), is_json=is_json)


@click.command("logs")
@click.argument("services", nargs=-1, metavar="[SERVICE]...")
@click.option("--follow", is_flag=True, help="Keep printing new output.")
@click.option("--tail", type=click.IntRange(0), default=100, show_default=True, metavar="N",
              help="Number of lines to print of each container.")  # fmt: skip
@IN
def logs(services: tuple[str, ...], follow: bool, tail: int, folder: str | None) -> None:
    """Print the output of the containers."""
    from flatout.clustering import files, running

    running.show_logs(files.open_folder(folder), services, is_following=follow, tail=tail)


@click.command("scale")
@click.argument("num_workers", type=click.IntRange(0, 512), metavar="N")
@_LIMIT
@names_folder
@JSON
def scale(num_workers: int, limit_s: float, folder: str | None, is_json: bool) -> int:
    """Run N workers without a GPU; those with one stay as they are."""
    from flatout.cli import show
    from flatout.cli.live import Waiting
    from flatout.cli.show_cluster import waiting_text
    from flatout.clustering import files, running

    opened, waiting = files.open_folder(folder), Waiting("")
    try:
        state = running.scale(
            opened, num_workers, limit_s=limit_s,
            on_wait=lambda found: waiting.say(waiting_text(found)), on_warning=show.print_finding,
        )  # fmt: skip
    finally:
        waiting.stop()
    return _tell(state, is_json=is_json)


@click.command("stop")
@names_folder
@JSON
def stop(folder: str | None, is_json: bool) -> None:
    """Stop the containers; `up` starts them again."""
    from flatout.cli import show
    from flatout.clustering import files, running

    stopped = running.stop(files.open_folder(folder))
    if is_json:
        show.print_json(stopped)


@click.command("down")
@click.option("--volumes", is_flag=True, help="Also remove the cluster's Docker volumes.")
@names_folder
@JSON
def down(volumes: bool, folder: str | None, is_json: bool) -> None:
    """Remove the containers and their network; runs and data stay."""
    from flatout.cli import show, show_cluster
    from flatout.clustering import files, running

    kept = running.down(files.open_folder(folder), is_with_volumes=volumes)
    (show.print_json if is_json else show_cluster.print_kept)(kept)


def _tell(state: ClusterState, *, is_json: bool) -> int:
    from flatout.cli import show, show_cluster

    (show.print_json if is_json else show_cluster.print_state)(state)
    is_wrong = any(one.severity == "error" for one in state.findings)
    return int(is_wrong or not all(one.is_well for one in state.containers))
