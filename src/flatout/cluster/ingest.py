"""Shards made by the nodes of a cluster: the process that ingests runs on its head, not here."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from flatout.cluster.compose import docker
from flatout.cluster.compose.compose_file import HEADS, RENDEZVOUS_PORT
from flatout.cluster.compose.env_file import engine_in
from flatout.cluster.containers import require_well
from flatout.cluster.files import Folder, open_folder
from flatout.cluster.model.cluster import ClusterState, Container
from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.runs import ingest_process
from flatout.schema.finding import option_without_effect
from flatout.schema.ingest_protocol import AnyIngestReply, Ingested, IngestRequest
from flatout.schema.predict_protocol import Noted, ProcessFailed


def ingest(request: IngestRequest) -> Generator[AnyIngestReply]:
    """Makes shards as `runs.ingest` does, by the nodes of the cluster whose folder is here.

    Args:
        request: with paths of this machine, below the folder of data that the nodes share.

    Raises:
        UsageError: bad-share, no-cluster-here, cluster-cannot-ingest, data-not-shared,
            cluster-not-up, and what else is wrong with the nodes.
    """
    request.check()
    folder = open_folder(None)
    inside = request_inside(request, folder)
    head = _head_of(require_well(folder))
    yield from _without_effect(request)
    python = docker.exec_words(head.id, ("python3",), is_fed=True)
    for line in ingest_process.stream_replies(python, inside):
        if isinstance(line, ProcessFailed) and line.has_traceback:
            line = line.kept_in(str(runs_api.record_crash(line.printed)))
        if isinstance(line, Ingested):
            here = str(Path(request.dest).expanduser().absolute())
            line = msgspec.structs.replace(line, folder=here, on_nodes=line.folder)
        yield line


def _head_of(now: ClusterState) -> Container:
    """The container that distributes the work.

    Raises:
        UsageError: cluster-not-up.
    """
    name = HEADS[now.engine]
    head = next((container for container in now.containers if container.service == name), None)
    if head is None:
        raise UsageError(
            "cluster-not-up",
            f"cluster {now.name} is not running.",
            because=f"its `{name}` container, which distributes the work, does not exist",
            fix="flatout cluster up",
        )
    return head


def request_inside(request: IngestRequest, folder: Folder) -> IngestRequest:
    """The request with the paths of the cluster's head.

    Raises:
        UsageError: cluster-cannot-ingest, data-not-shared.
    """
    engine = engine_in(folder.settings)
    if engine == "torchrun":
        raise UsageError(
            "cluster-cannot-ingest",
            f"the cluster in {folder.path} uses torchrun.",
            because="distributing data needs Ray or Dask",
            fix="leave out --on: this machine produces the same shards",
        )
    return msgspec.structs.replace(
        request,
        source=_source_inside(folder, request.source),
        dest=_inside(folder, request.dest),
        on=engine,
        address=f"{HEADS[engine]}:{RENDEZVOUS_PORT[engine]}",
        python=None,
        env=None,
    )


def _source_inside(folder: Folder, text: str) -> str:
    """A relative path that leads nowhere here is looked up by the head in the folder of data."""
    given = Path(text).expanduser()
    return _inside(folder, text) if given.is_absolute() or given.exists() else text


def _inside(folder: Folder, text: str) -> str:
    return folder.data_inside(text, "name another folder in .env, then: flatout cluster up")


def _without_effect(request: IngestRequest) -> Iterator[Noted]:
    given = {"--address": request.address, "--python": request.python, "--env": request.env}
    for option, value in given.items():
        if value is not None:
            yield Noted(
                finding=option_without_effect(
                    option,
                    "the cluster's nodes do the work, with the packages of their image",
                    f"leave out {option}",
                )
            )
