"""The head of a cluster's Ray, its address, and the state of its nodes."""

from __future__ import annotations

import msgspec

from flatout.cluster import ray_jobs
from flatout.cluster.compose import cluster_folder
from flatout.cluster.compose.compose_file import HEADS
from flatout.cluster.compose.env_file import address_in
from flatout.cluster.files import Folder
from flatout.cluster.model.cluster import LOST, Container
from flatout.cluster.ray_jobs import RayHead
from flatout.errors import FlatoutError

# For a command that only reads, and can do without it.
_LIMIT_S = 5.0


def ray_head(folder: Folder) -> RayHead:
    """The published address of a Ray cluster's dashboard, and its token.

    Raises:
        UsageError: bad-cluster-setting.
    """
    address = f"http://{address_in(folder.settings, 'CLUSTER_DASHBOARD_PORT')}"
    return RayHead(address=address, token=ray_token(folder))


def ray_token(folder: Folder) -> str | None:
    """The token that a cluster's Ray requires; None if it requires none."""
    path = folder.token_file
    return None if path is None else cluster_folder.read_secret(path)


def with_lost(
    folder: Folder, current: tuple[Container, ...]
) -> tuple[tuple[Container, ...], str | None]:
    """The containers of a Ray cluster, marked as lost if its head does not list them as alive.

    Docker runs each container's own health check. A container that was disconnected and came back
    reports itself healthy for up to a minute, until it learns that the head has dropped it.

    Returns:
        The containers, and why the head could not be queried; None if it answered.
    """
    if not any(container.state == "running" for container in current):
        return current, None
    try:
        is_alive = ray_jobs.nodes(ray_head(folder), _LIMIT_S)
    except FlatoutError as error:
        return current, error.because or error.problem
    head = next(
        (container.address for container in current if container.service == HEADS["ray"]), None
    )
    if not is_alive.get(head or ""):
        # It knows its own container by another address, and so may all the others.
        return current, None
    judged = [
        msgspec.structs.replace(container, health=LOST)
        if container.state == "running"
        and container.health != "starting"
        and not is_alive.get(container.address or "")
        else container
        for container in current
    ]
    return tuple(judged), None
