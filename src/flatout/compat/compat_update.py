"""Finds newer builds than those in the tables by listing the indexes.

An index lists the versions, Pythons and systems of its wheels, but not the GPU code in them: that
is assumed to be the same as in the newest known build for the same CUDA, and marked as unverified.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date

import msgspec

from flatout.compat.fit import Target
from flatout.compat.index_check import wheel_project
from flatout.compat.index_listing import Wheel, has_wheel
from flatout.compat.rows import Build, Os, Tables
from flatout.schema.versions import Pair, numbers

_RELEASE = re.compile(r"\d+(\.\d+)+")


class TablesUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The data that `flatout compat update` stores. read: a date."""

    update_version: int
    read: str
    builds: tuple[Build, ...]


def families(tables: Tables) -> list[Build]:
    """The newest build of each series: the best guess for its newer versions.

    If one index has the builds for every CUDA (TensorFlow's), it does not show which CUDA a newer
    version is for, so they are one series.
    """
    newest: dict[tuple[str, ...], Build] = {}
    for build in tables.builds:
        if build.is_nightly or build.is_by_hand:
            continue
        cuda = build.cuda if build.cuda == "cpu" or build.cuda in build.index else build.extra
        key = (build.framework, cuda, build.index, build.project, build.machine, *build.oses)
        known = newest.get(key)
        if known is None or numbers(build.version) > numbers(known.version):
            newest[key] = build
    return list(newest.values())


def newer_builds(known: Build, wheels: Sequence[Wheel], today: date) -> list[Build]:
    """The builds of a family that are newer than the newest known one.

    Raises:
        ValueError: the known version is not among the wheels, so they are not of this family.
    """
    listed = {wheel.version for wheel in wheels if wheel.local in ("", known.cuda)}
    if known.version not in listed and not _is_any_older(known, listed):
        raise ValueError(f"it lists no known version of {known.project}")
    oldest = numbers(known.version)
    newer = [
        version for version in listed if _RELEASE.fullmatch(version) and numbers(version) > oldest
    ]
    builds = []
    for version in sorted(newer, key=numbers):
        pythons = _pythons(wheel for wheel in wheels if wheel.version == version)
        if not pythons:
            continue
        build = replace(
            known,
            version=version,
            python=(pythons[0], pythons[-1]),
            source=f"{known.index}; its code is assumed to be that of {known.version}",
            read=today.isoformat(),
            confidence="high" if known.cuda == "cpu" else "low",
        )
        oses = tuple(os for os in known.oses if _is_for(build, os, wheels))
        if oses:
            builds.append(replace(build, oses=oses))
    return builds


def pages_to_read(tables: Tables) -> dict[tuple[str, str], list[Build]]:
    """The pages that list newer builds: (index, project) -> the families on it."""
    pages: dict[tuple[str, str], list[Build]] = {}
    for build in families(tables):
        pages.setdefault((build.index, wheel_project(build)), []).append(build)
    return pages


def _is_any_older(known: Build, listed: Iterable[str]) -> bool:
    return any(
        _RELEASE.fullmatch(version) and numbers(version) < numbers(known.version)
        for version in listed
    )


def _is_for(build: Build, os: Os, wheels: Sequence[Wheel]) -> bool:
    target = Target(os=os, machine=build.machine)
    return any(has_wheel(wheels, build, python, target) for python in build.python)


def _pythons(wheels: Iterable[Wheel]) -> list[Pair]:
    tags = {tag for wheel in wheels for tag in wheel.pythons}
    matches = [re.fullmatch(r"cp(\d)(\d+)", tag) for tag in tags]
    return sorted((int(match[1]), int(match[2])) for match in matches if match)
