"""Requirements between packages, and which are not met. Pure functions of package metadata.

Source: https://packaging.python.org/en/latest/specifications/dependency-specifiers/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from packaging.markers import UndefinedEnvironmentName, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from flatout.schema.installed_packages import Installed


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """A requirement that is not met. has: the installed version, None if not installed."""

    package: str
    required: str
    needs: str
    has: str | None


def conflicts(
    packages: Mapping[str, Installed], markers: Mapping[str, str]
) -> tuple[Conflict, ...]:
    """Requirements that are not met, as `pip check` finds them.

    Args:
        packages: by name; changed ones may come without their requirements.
        markers: of the interpreter that they are for.
    """
    unmet = []
    for package in packages.values():
        for needed in requirements(package, markers):
            name = plain_name(needed.name)
            there = packages.get(name)
            if there is None or not _is_met(needed, there.version):
                has = there.version if there else None
                needs = f"{needed.name}{needed.specifier}"
                unmet.append(Conflict(package=package.name, required=name, needs=needs, has=has))
    return tuple(unmet)


def requirements(package: Installed, markers: Mapping[str, str]) -> Iterator[Requirement]:
    """The requirements of a package here; invalid lines are ignored, as in pip."""
    environment = {**default_environment(), **markers, "extra": ""}
    for line in package.requires:
        try:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(environment):  # type: ignore[arg-type]
                yield requirement
        except (InvalidRequirement, UndefinedEnvironmentName, InvalidVersion):
            continue


def constraint_lines(
    packages: Sequence[Installed], markers: Mapping[str, str], *, is_pinned: bool
) -> list[str]:
    """Constraints that keep packages unchanged: their versions, and what they need."""
    lines = []
    for package in packages:
        if is_pinned and not package.is_local and _version(package.version):
            lines.append(f"{package.name}=={package.version}")
        for needed in requirements(package, markers):
            # A constraint has no extras and no URL.
            if needed.specifier and not needed.url:
                lines.append(f"{needed.name}{needed.specifier}")
    return sorted(set(lines))


def closure(names: Sequence[str], packages: Mapping[str, Installed],
            markers: Mapping[str, str]) -> set[str]:  # fmt: skip
    """These packages and their dependencies."""
    closed: set[str] = set()
    waiting = [name for name in names if name in packages]
    while waiting:
        name = waiting.pop()
        if name in closed:
            continue
        closed.add(name)
        needed = (
            plain_name(requirement.name) for requirement in requirements(packages[name], markers)
        )
        waiting += [name for name in needed if name in packages]
    return closed


def is_same_version(version: str, other: str) -> bool:
    """Whether two strings are the same version, including the local part after `+`."""
    first, second = _version(version), _version(other)
    return first == second if first and second else version == other


def plain_name(text: str) -> str:
    """A package's name, normalized for comparison."""
    return re.sub(r"[-_.]+", "-", text).lower()


def requirement_names(lines: Sequence[str]) -> dict[str, str]:
    """Requirements by the name of the required package; invalid lines are left out."""
    lines_by_name = {}
    for line in lines:
        try:
            lines_by_name[plain_name(Requirement(line).name)] = line
        except InvalidRequirement:
            continue
    return lines_by_name


def _is_met(needed: Requirement, version: str) -> bool:
    parsed = _version(version)
    return parsed is None or needed.specifier.contains(parsed, prereleases=True)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
