"""The verbs of `flatout setup` and `flatout compat`, one short function each."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, date, datetime
from typing import Any

import msgspec

from flatout.errors import RunFailed
from flatout.nouns.compat_state import CompatState, TableState
from flatout.nouns.machine import Machine
from flatout.nouns.setup_request import SetupRequest
from flatout.probes.machine import probe
from flatout.setup.checking import Look, Seen, checked, wheel_project
from flatout.setup.fit import Target
from flatout.setup.listing import Wheel, has_wheel, wheels
from flatout.setup.rows import DEFAULT_INDEX, Build, Pair, Tables
from flatout.setup.solve import Answer
from flatout.setup.tables import FRAMEWORKS, shipped_tables, with_updates
from flatout.setup.target import described_target, target_from
from flatout.setup.update import Update, newer_builds, pages_wanted
from flatout.setup.versions import numbers, pair_text
from flatout.setup.wishes import wishes_from, without_effect
from flatout.system import compat_file, package_index
from flatout.system.system import LocalSystem, Unread

# The command line shows answers and imports no more than this.
__all__ = ["Answer", "Chosen", "choose", "compat_state", "report", "tables_in_use", "update_compat"]

_UPDATE_VERSION = 1


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What fits, an answer for each framework. machine: the one here, where it is about that."""

    answers: tuple[Answer, ...]
    target: Target
    machine: Machine | None = None
    warnings: tuple[str, ...] = ()


def choose(request: SetupRequest, shipped: Tables | None = None) -> Chosen:
    """What of the frameworks fits the machine that is described, or this one.

    Args:
        request: what was typed.
        shipped: the tables to go by; those of this release where None.

    Raises:
        UsageError: unknown-framework, unknown-card, not-a-version, machine-not-described.
    """
    wishes = wishes_from(request)
    tables = tables_in_use(shipped)
    machine = None if request.cards else probe(LocalSystem(), sys.executable)
    if machine is None:
        target = described_target(request, tables)
    else:
        target = target_from(machine, tables, platform.machine())
    look = _not_looked(tables) if request.is_offline else _looking()
    return Chosen(
        answers=tuple(checked(target, wish, tables, look) for wish in wishes),
        target=target,
        machine=machine,
        warnings=without_effect(request),
    )


def report(chosen: Chosen) -> dict[str, Any]:
    """The answer for programs; with several frameworks a list of them."""
    documents = [one.document for one in chosen.answers]
    return documents[0] if len(documents) == 1 else {"answers": documents}


def tables_in_use(shipped: Tables | None = None) -> Tables:
    """The shipped tables, with what the indexes were last seen to have beside them."""
    update = compat_file.read_update(Update)
    tables = shipped or shipped_tables()
    return with_updates(tables, update.builds, update.read) if update else tables


def compat_state(not_reached: tuple[str, ...] = (), shipped: Tables | None = None) -> CompatState:
    """What the tables know, and how old that is."""
    update = compat_file.read_update(Update)
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
    """Asks the indexes for newer builds, and keeps what they say.

    Raises:
        RunFailed: indexes-not-reached: none of them answered with what an index says.
    """
    shipped, old = shipped or shipped_tables(), compat_file.read_update(Update)
    added: list[Build] = []
    failures = []
    pages = pages_wanted(shipped)
    for (index, project), known in pages.items():
        page = package_index.read_page(_asked(index), project, is_kept_enough=False)
        if isinstance(page, Unread):
            failures.append(page.reason)
            # What it said last time stays.
            added += [one for one in old.builds if one.index == index] if old else []
            continue
        found = list(wheels(page.names, project))
        try:
            added += [build for one in known for build in newer_builds(one, found, _today())]
        except ValueError as error:
            failures.append(f"{index}/{project}: refused, {error}")
    if len(failures) == len(pages):
        raise RunFailed(
            "indexes-not-reached",
            "no package index could be asked.",
            because="; ".join(failures[:2]),
            fix="check the network and its proxy (HTTPS_PROXY, SSL_CERT_FILE); the tables of "
            f"{shipped.read} stay in use",
        )
    update = Update(
        update_version=_UPDATE_VERSION,
        read=_today().isoformat(),
        builds=tuple(dict.fromkeys(added)),
    )
    compat_file.keep_update(update)
    return compat_state(tuple(failures), shipped)


def _looking() -> Look:
    """Asks the indexes, each page once."""
    pages: dict[tuple[str, str], list[Wheel] | Unread] = {}

    def look(build: Build, python: Pair, target: Target) -> Seen:
        place = build.index, wheel_project(build)
        if place not in pages:
            page = package_index.read_page(_asked(place[0]), place[1])
            pages[place] = page if isinstance(page, Unread) else list(wheels(page.names, place[1]))
        found = pages[place]
        if isinstance(found, Unread):
            return Seen(
                is_there=None,
                said=f"not checked: the index cannot be reached ({found.reason}); "
                f"by the tables of {build.read} it has this build",
            )
        return Seen(
            is_there=has_wheel(found, build, python, target),
            said=f"checked: {build.index} has its wheel for Python {pair_text(python)}",
        )

    return look


def _not_looked(tables: Tables) -> Look:
    def look(build: Build, python: Pair, target: Target) -> Seen:
        return Seen(
            is_there=None,
            said=f"not checked with the index (--offline); the tables are of {tables.read}",
        )

    return look


def _table_state(framework: str, tables: Tables) -> TableState:
    builds = [one for one in tables.builds if one.framework == framework and not one.is_nightly]
    newest = max((one.version for one in builds), key=numbers)
    return TableState(framework=framework, newest=newest, num_builds=len(builds))


def _today() -> date:
    return datetime.now(UTC).date()


def _asked(index: str) -> str | None:
    return None if index == DEFAULT_INDEX else index
