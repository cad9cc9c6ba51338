"""Verifies a choice with the index: a missing build is ruled out, and the next one chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flatout.compat.fit import BuildRequest, Target, python_for
from flatout.compat.rows import Build, Tables
from flatout.compat.solve import CompatAnswer, solve
from flatout.schema.versions import Pair, pair_text


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """Whether an index has a build's wheel, None if unknown; message: in words."""

    is_there: bool | None
    message: str


def with_wheel(index: str, python: Pair) -> IndexEntry:
    """The result from an index that has the wheel."""
    return IndexEntry(
        is_there=True, message=f"checked: {index} has the wheel for Python {pair_text(python)}"
    )


def unreached(build: Build, reason: str) -> IndexEntry:
    """The result for an index that cannot be reached."""
    return IndexEntry(
        is_there=None,
        message=f"not checked: cannot reach the index ({reason}); "
        f"the tables of {build.read} list this build",
    )


def not_checked(tables: Tables) -> IndexEntry:
    """The result without a network."""
    message = f"not checked with the index (--offline); tables from {tables.read}"
    return IndexEntry(is_there=None, message=message)


IndexLookup = Callable[[Build, Pair, Target], IndexEntry]


def checked(
    target: Target, request: BuildRequest, tables: Tables, look_up: IndexLookup
) -> CompatAnswer:
    """The best build that its index has, as far as the index can be reached.

    Args:
        target: where it should run.
        request: the framework, and the user's constraints.
        tables: the published builds.
        look_up: queries the index for the wheel of a build for a Python.
    """
    answer = solve(target, request, tables)
    while answer.build is not None:
        build = answer.build
        entry = look_up(build, python_for(build, request), target)
        if entry.is_there is not False:
            return replace(answer, why=(*answer.why, entry.message))
        # The same page also shows whether its other builds exist.
        page_key = build.index, wheel_project(build)
        beside = [
            other for other in tables.builds if (other.index, wheel_project(other)) == page_key
        ]
        lacking = [
            other
            for other in beside
            if not look_up(other, python_for(other, request), target).is_there
        ]
        request = replace(request, absent=(*request.absent, *lacking))
        answer = solve(target, request, tables)
    return answer


def wheel_project(build: Build) -> str:
    """The project whose wheels show whether a build exists."""
    if build.framework == "jax":
        return f"jax-{build.extra}-plugin" if build.extra else "jaxlib"
    return build.project
