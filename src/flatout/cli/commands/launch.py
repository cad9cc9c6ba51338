"""`flatout launch`: a user's own script on several nodes."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.options import json_document


# Options after the script's name belong to the script.
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
    help="Where to start: this machine, Ray's nodes, or a cluster of containers.",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Time limit, after which all nodes are stopped.",
)
@click.option("--logs", metavar="DIR", help="Folder for the log of each node.")
@click.option("--python", metavar="PATH", help="Python interpreter to run the script with.")
@click.option("--env", metavar="NAME", help="Environment to run it in (see `flatout envs`).")
@json_document
@click.argument("script")
@click.argument("arguments", nargs=-1, metavar="[ARGUMENT]...")
def command(is_json: bool, **options: Any) -> int:
    """Start SCRIPT on several nodes: processes on this machine, or the nodes of a cluster.

    Nodes find each other the way the framework expects. When one fails, all are stopped.
    """
    from flatout.cli.flows import launch as launched
    from flatout.cluster import api as cluster_api
    from flatout.schema.script_launch import LaunchRequest

    request = LaunchRequest(**options)
    return launched.follow(cluster_api.launch(request), request.warnings(), is_json=is_json)
