"""The operations behind `flatout setup` and `flatout compat`."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, date, datetime
from typing import Any

import msgspec

from flatout.compat.build_requests import build_requests_from, without_effect
from flatout.compat.compat_update import TablesUpdate, newer_builds, pages_to_read
from flatout.compat.fit import Target
from flatout.compat.index_check import (
    IndexEntry,
    IndexLookup,
    checked,
    not_checked,
    unreached,
    wheel_project,
    with_wheel,
)
from flatout.compat.index_listing import Wheel, has_wheel, wheels
from flatout.compat.request import SetupRequest
from flatout.compat.rows import DEFAULT_INDEX, Build, Tables
from flatout.compat.solve import CompatAnswer
from flatout.compat.tables import FRAMEWORKS, shipped_tables, with_updates
from flatout.compat.target import described_target, target_from
from flatout.errors import RunFailed
from flatout.schema.machine import Machine
from flatout.schema.versions import Pair, numbers
from flatout.system import package_index
from flatout.system.host_system import LocalSystem, Unread
from flatout.system.probes.machine import probe
from flatout.system.store import compat_cache

# The command line shows answers and imports only this.
__all__ = [
    "CompatAnswer",
    "Chosen",
    "choose",
    "compat_state",
    "report",
    "tables_in_use",
    "update_compat",
]

_UPDATE_VERSION = 1


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """One answer for each framework. machine: this machine, if the answers are about it."""

    answers: tuple[CompatAnswer, ...]
    target: Target
    machine: Machine | None = None
    warnings: tuple[str, ...] = ()


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """The rows on one framework. newest: a version; num_builds: number of rows."""

    framework: str
    newest: str
    num_builds: int


class CompatState(msgspec.Struct, frozen=True, kw_only=True):
    """The tables in use.

    read: date of the shipped tables; updated: when the indexes were last queried, None for never.
    num_added: newer builds from the indexes. not_reached: indexes that could not be queried.
    """

    read: str
    age_days: int
    updated: str | None
    num_added: int
    num_cards: int
    tables: tuple[TableState, ...]
    not_reached: tuple[str, ...] = ()


def choose(request: SetupRequest, shipped: Tables | None = None) -> Chosen:
    """The builds of the frameworks that fit the described machine, or this one.

    Args:
        request: from the command line.
        shipped: the tables to use; None for those of this release.

    Raises:
        UsageError: unknown-framework, unknown-card, not-a-version, machine-not-described.
    """
    build_requests = build_requests_from(request)
    tables = tables_in_use(shipped)
    machine = None if request.cards else probe(LocalSystem(), sys.executable)
    if machine is None:
        target = described_target(request, tables)
    else:
        target = target_from(machine, tables, platform.machine())
    look_up = _no_lookup(tables) if request.is_offline else _index_lookup()
    return Chosen(
        answers=tuple(
            checked(target, build_request, tables, look_up) for build_request in build_requests
        ),
        target=target,
        machine=machine,
        warnings=without_effect(request),
    )


def report(chosen: Chosen) -> dict[str, Any]:
    """The answer for programs; with several frameworks a list of them."""
    documents = [answer.document for answer in chosen.answers]
    return documents[0] if len(documents) == 1 else {"answers": documents}


def tables_in_use(shipped: Tables | None = None) -> Tables:
    """The shipped tables, with the newer builds found by the last update."""
    update = compat_cache.read_update(TablesUpdate)
    tables = shipped or shipped_tables()
    return with_updates(tables, update.builds, update.read) if update else tables


def compat_state(not_reached: tuple[str, ...] = (), shipped: Tables | None = None) -> CompatState:
    """The contents and the age of the tables."""
    update = compat_cache.read_update(TablesUpdate)
    shipped = shipped or shipped_tables()
    tables = tables_in_use(shipped)
    return CompatState(
        read=shipped.read,
        age_days=max(0, (_today() - date.fromisoformat(tables.read)).days),
        updated=update.read if update else None,
        num_added=len(tables.builds) - len(shipped.builds),
        num_cards=len(tables.cards),
        tables=tuple(_table_state(name, tables) for name in FRAMEWORKS),
        not_reached=not_reached,
    )


def update_compat(shipped: Tables | None = None) -> CompatState:
    """Queries the indexes for newer builds, and stores the result.

    Raises:
        RunFailed: indexes-not-reached, if none gave a valid reply.
    """
    shipped, old = shipped or shipped_tables(), compat_cache.read_update(TablesUpdate)
    added: list[Build] = []
    failures = []
    pages = pages_to_read(shipped)
    for (index, project), known in pages.items():
        page = package_index.read_page(_unless_default(index), project, may_use_cache=False)
        if isinstance(page, Unread):
            failures.append(page.reason)
            # Keep what it listed last.
            added += [build for build in old.builds if build.index == index] if old else []
            continue
        listed = list(wheels(page.names, project))
        try:
            added += [build for base in known for build in newer_builds(base, listed, _today())]
        except ValueError as error:
            failures.append(f"{index}/{project}: refused, {error}")
    if len(failures) == len(pages):
        raise RunFailed(
            "indexes-not-reached",
            "no package index could be reached.",
            because="; ".join(failures[:2]),
            fix="check the network and its proxy (HTTPS_PROXY, SSL_CERT_FILE); the tables of "
            f"{shipped.read} stay in use",
        )
    update = TablesUpdate(
        update_version=_UPDATE_VERSION,
        read=_today().isoformat(),
        builds=tuple(dict.fromkeys(added)),
    )
    compat_cache.keep_update(update)
    return compat_state(tuple(failures), shipped)


def _index_lookup() -> IndexLookup:
    """Queries the indexes, each page once."""
    pages: dict[tuple[str, str], list[Wheel] | Unread] = {}

    def look_up(build: Build, python: Pair, target: Target) -> IndexEntry:
        index, project = page_key = build.index, wheel_project(build)
        if page_key not in pages:
            page = package_index.read_page(_unless_default(index), project)
            pages[page_key] = (
                page if isinstance(page, Unread) else list(wheels(page.names, project))
            )
        listed = pages[page_key]
        if isinstance(listed, Unread):
            return unreached(build, listed.reason)
        if has_wheel(listed, build, python, target):
            return with_wheel(build.index, python)
        return IndexEntry(is_there=False, message="")

    return look_up


def _no_lookup(tables: Tables) -> IndexLookup:
    def look_up(build: Build, python: Pair, target: Target) -> IndexEntry:
        return not_checked(tables)

    return look_up


def _table_state(framework: str, tables: Tables) -> TableState:
    builds = [
        build for build in tables.builds if build.framework == framework and not build.is_nightly
    ]
    newest = max((build.version for build in builds), key=numbers)
    return TableState(framework=framework, newest=newest, num_builds=len(builds))


def _today() -> date:
    return datetime.now(UTC).date()


def _unless_default(index: str) -> str | None:
    return None if index == DEFAULT_INDEX else index
