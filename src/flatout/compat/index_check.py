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
    """Whether an index has a build's wheel, None if unknown; said: in words."""

    is_there: bool | None
    said: str


def with_wheel(place: str, python: Pair) -> IndexEntry:
    """The answer of an index that has the wheel."""
    return IndexEntry(
        is_there=True, said=f"checked: {place} has the wheel for Python {pair_text(python)}"
    )


def unreached(build: Build, reason: str) -> IndexEntry:
    """The answer for an index that cannot be reached."""
    return IndexEntry(
        is_there=None,
        said=f"not checked: cannot reach the index ({reason}); "
        f"the tables of {build.read} list this build",
    )


def not_asked(tables: Tables) -> IndexEntry:
    """The answer without a network."""
    said = f"not checked with the index (--offline); tables from {tables.read}"
    return IndexEntry(is_there=None, said=said)


Look = Callable[[Build, Pair, Target], IndexEntry]


def checked(target: Target, wish: BuildRequest, tables: Tables, look: Look) -> CompatAnswer:
    """The best build that its index has, as far as the index can be reached.

    Args:
        target: where it should run.
        wish: the framework, and the user's constraints.
        tables: the published builds.
        look: queries the index for the wheel of a build for a Python.
    """
    answer = solve(target, wish, tables)
    while answer.build is not None:
        build = answer.build
        seen = look(build, python_for(build, wish), target)
        if seen.is_there is not False:
            return replace(answer, why=(*answer.why, seen.said))
        # The same page also shows whether its other builds exist.
        place = build.index, wheel_project(build)
        beside = [one for one in tables.builds if (one.index, wheel_project(one)) == place]
        lacking = [one for one in beside if not look(one, python_for(one, wish), target).is_there]
        wish = replace(wish, absent=(*wish.absent, *lacking))
        answer = solve(target, wish, tables)
    return answer


def wheel_project(build: Build) -> str:
    """The project whose wheels show whether a build exists."""
    if build.framework == "jax":
        return f"jax-{build.extra}-plugin" if build.extra else "jaxlib"
    return build.project
