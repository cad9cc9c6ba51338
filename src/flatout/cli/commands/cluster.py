"""`flatout cluster`: containers of this machine as if they were machines."""

from __future__ import annotations

import click

from flatout.cli.commands.cluster_containers import down, logs, scale, status, stop, up
from flatout.cli.commands.cluster_files import check, init
from flatout.cli.commands.cluster_predict import predict


@click.group("cluster")
def command() -> None:
    """Make a cluster of containers on this machine: Ray, Dask or torchrun over Docker Compose."""


for part in (init, check, up, status, logs, scale, stop, down, predict):
    command.add_command(part)
