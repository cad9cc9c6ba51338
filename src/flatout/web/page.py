"""What a page is: a request in, a template with its data out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import QueryParams

from flatout.cluster.model.cluster import ClusterState
from flatout.doctor.model.diagnosis import Examined
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.finding import Finding, finding_from
from flatout.web.background_query import (
    BackgroundQuery,
    cluster_here,
    machine_health,
    sample_indexing,
)
from flatout.web.machine_change import MachineChanges
from flatout.web.run_cache import RunCache
from flatout.web.sweep_cache import SweepCache

T = TypeVar("T")


class PageContext(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives a request."""

    runs: RunCache
    health: BackgroundQuery[Examined] = msgspec.field(default_factory=machine_health)
    cluster: BackgroundQuery[ClusterState] = msgspec.field(default_factory=cluster_here)
    indexing: BackgroundQuery[None] = msgspec.field(default_factory=sample_indexing)
    sweeps: SweepCache = msgspec.field(default_factory=SweepCache)
    changes: MachineChanges = msgspec.field(default_factory=MachineChanges)


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a page. run, sweep: the id in the address, where the address has one."""

    context: PageContext
    query: QueryParams
    run: str = ""
    sweep: str = ""

    def number(self, name: str, least: int, most: int) -> int | None:
        """A number of the query, within its limits; None where there is none."""
        text = self.query.get(name, "")
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            return None
        return max(least, min(most, int(text)))


class WebPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page. data: what its template shows, and its JSON document; plain values or structs.

    template: the name of its file, without the ending.
    """

    template: str
    data: dict[str, Any]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a page, or why it cannot be shown."""

    value: Any = None
    problem: Finding | None = None


def section(read: Callable[[], T]) -> Section:
    """Reads a part of a page; the rest is shown whatever is wrong with it."""
    try:
        return Section(value=read())
    except FlatoutError as error:
        return Section(problem=finding_from(error))
    except OSError as error:
        return Section(problem=finding_from(not_accessible(error)))


def not_accessible(error: OSError) -> FlatoutError:
    """A disk that does not respond, or a file that was removed in between."""
    return RunFailed(
        "file-not-accessible",
        f"{error.filename or 'a file'} cannot be accessed.",
        because=error.strerror or str(error),
        fix="check the disk, and reload the page",
    )
