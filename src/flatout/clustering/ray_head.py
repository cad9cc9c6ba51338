"""The head of a cluster's Ray, asked from here: where it is, and what it says of its nodes."""

from __future__ import annotations

import msgspec

from flatout.cluster.compose_file import HEADS
from flatout.cluster.settings import address_in
from flatout.clustering.files import Folder
from flatout.errors import FlatoutError
from flatout.nouns.cluster import LOST, Container
from flatout.system import cluster_folder, ray_jobs
from flatout.system.ray_jobs import RayHead

# For a command that only looks, and is well answered without it.
_LIMIT_S = 5.0


def ray_head(folder: Folder) -> RayHead:
    """Where the dashboard of a cluster of Ray is published, and its token.

    Raises:
        UsageError: bad-cluster-setting.
    """
    address = f"http://{address_in(folder.settings, 'CLUSTER_DASHBOARD_PORT')}"
    return RayHead(address=address, token=ray_token(folder))


def ray_token(folder: Folder) -> str | None:
    """The token that a cluster's Ray asks for; None where nobody is asked for one."""
    path = folder.token_file
    return None if path is None else cluster_folder.read_secret(path)


def with_lost(
    folder: Folder, found: tuple[Container, ...]
) -> tuple[tuple[Container, ...], str | None]:
    """The containers of a Ray, told as lost where its head does not count them as alive.

    Docker asks each container about itself. One that was cut off, and came back, calls itself well
    for up to a minute, until it has heard that the head has given it up.

    Returns:
        The containers, and why the head could not be asked; None where it has answered.
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
