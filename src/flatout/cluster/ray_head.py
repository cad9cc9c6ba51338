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
    folder: Folder, found: tuple[Container, ...]
) -> tuple[tuple[Container, ...], str | None]:
    """The containers of a Ray cluster, marked as lost if its head does not list them as alive.

    Docker runs each container's own health check. A container that was disconnected and came back
    reports itself healthy for up to a minute, until it learns that the head has dropped it.

    Returns:
        The containers, and why the head could not be queried; None if it answered.
    """
    if not any(one.state == "running" for one in found):
        return found, None
    try:
        is_alive = ray_jobs.nodes(ray_head(folder), _LIMIT_S)
    except FlatoutError as error:
        return found, error.because or error.problem
    head = next((one.address for one in found if one.service == HEADS["ray"]), None)
    if not is_alive.get(head or ""):
        # It knows its own container by another address, and so may all the others.
        return found, None
    judged = [
        msgspec.structs.replace(one, health=LOST)
        if one.state == "running"
        and one.health != "starting"
        and not is_alive.get(one.address or "")
        else one
        for one in found
    ]
    return tuple(judged), None
