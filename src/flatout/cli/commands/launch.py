"""`flatout launch`: a person's own script on several nodes."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


# Options of the script come behind its name and are its own.
@click.command("launch", context_settings={"allow_interspersed_args": False})
@click.option(
    "--framework",
    type=click.Choice(["tensorflow", "paddle", "torch"]),
    required=True,
    help="Framework whose rendezvous the script expects.",
)
@click.option(
    "--nodes", type=click.IntRange(1, 512), required=True, metavar="N", help="Number of nodes."
)
@click.option(
    "--on",
    type=click.Choice(["local", "ray", "cluster"]),
    default="local",
    show_default=True,
    help="Start processes on this machine, on Ray's nodes, or in a cluster of containers.",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Stop all nodes after this time.",
)
@click.option("--logs", metavar="DIR", help="Folder for the output of each node.")
@click.option("--python", metavar="PATH", help="Python interpreter to run the script with.")
@click.option("--env", metavar="NAME", help="Environment made by `flatout setup` to run it in.")
@json_document
@click.argument("script")
@click.argument("arguments", nargs=-1, metavar="[ARGUMENT]...")
def command(is_json: bool, **options: Any) -> int:
    """Start SCRIPT on several nodes at once: processes of this machine, or of a cluster's nodes.

    Nodes find each other the way the framework expects. When one fails, all are stopped.
    """
    from flatout import launching
    from flatout.cli import launched
    from flatout.clustering import scripts
    from flatout.nouns.launch import LaunchRequest

    request = LaunchRequest(**options)
    launch = scripts.launch if request.on == "cluster" else launching.launch
    return launched.follow(launch(request), request.warnings(), is_json=is_json)
