"""A choice that the index was asked about: what is not there is ruled out, and the next taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flatout.setup.fit import Target, Wish, python_for
from flatout.setup.rows import Build, Pair, Tables
from flatout.setup.solve import Answer, solve


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Whether an index has a build's wheel, None where nobody can tell; said: in words."""

    is_there: bool | None
    said: str


Look = Callable[[Build, Pair, Target], Seen]


def checked(target: Target, wish: Wish, tables: Tables, look: Look) -> Answer:
    """The best build that its index has, as far as the index can be asked.

    Args:
        target: where it is to run.
        wish: the framework, and what the person has settled.
        tables: what is published.
        look: asks the index whether it has the wheel of a build for a Python.
    """
    answer = solve(target, wish, tables)
    while answer.build is not None:
        build = answer.build
        seen = look(build, python_for(build, wish), target)
        if seen.is_there is not False:
            return replace(answer, why=(*answer.why, seen.said))
        # The page that lacks it tells of the others that it should have, too.
        place = build.index, wheel_project(build)
        beside = [one for one in tables.builds if (one.index, wheel_project(one)) == place]
        lacking = [one for one in beside if not look(one, python_for(one, wish), target).is_there]
        wish = replace(wish, absent=(*wish.absent, *lacking))
        answer = solve(target, wish, tables)
    return answer


def wheel_project(build: Build) -> str:
    """The project whose wheels tell whether a build is there."""
    if build.framework == "jax":
        return f"jax-{build.extra}-plugin" if build.extra else "jaxlib"
    return build.project
