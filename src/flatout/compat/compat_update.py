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
    for one in tables.builds:
        if one.is_nightly or one.is_by_hand:
            continue
        cuda = one.cuda if one.cuda == "cpu" or one.cuda in one.index else one.extra
        key = (one.framework, cuda, one.index, one.project, one.machine, *one.oses)
        known = newest.get(key)
        if known is None or numbers(one.version) > numbers(known.version):
            newest[key] = one
    return list(newest.values())


def newer_builds(known: Build, found: Sequence[Wheel], today: date) -> list[Build]:
    """The builds of a family that are newer than the newest known one.

    Raises:
        ValueError: the known version is not among the wheels, so they are not of this family.
    """
    listed = {one.version for one in found if one.local in ("", known.cuda)}
    if known.version not in listed and not _is_any_older(known, listed):
        raise ValueError(f"it lists no known version of {known.project}")
    oldest = numbers(known.version)
    newer = [one for one in listed if _RELEASE.fullmatch(one) and numbers(one) > oldest]
    builds = []
    for version in sorted(newer, key=numbers):
        pythons = _pythons(one for one in found if one.version == version)
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
        oses = tuple(os for os in known.oses if _is_for(build, os, found))
        if oses:
            builds.append(replace(build, oses=oses))
    return builds


def pages_wanted(tables: Tables) -> dict[tuple[str, str], list[Build]]:
    """The pages that list newer builds: (index, project) -> the families on it."""
    pages: dict[tuple[str, str], list[Build]] = {}
    for one in families(tables):
        pages.setdefault((one.index, wheel_project(one)), []).append(one)
    return pages


def _is_any_older(known: Build, listed: Iterable[str]) -> bool:
    return any(
        _RELEASE.fullmatch(version) and numbers(version) < numbers(known.version)
        for version in listed
    )


def _is_for(build: Build, os: Os, found: Sequence[Wheel]) -> bool:
    target = Target(os=os, machine=build.machine)
    return any(has_wheel(found, build, python, target) for python in build.python)


def _pythons(found: Iterable[Wheel]) -> list[Pair]:
    tags = {tag for one in found for tag in one.pythons}
    matches = [re.fullmatch(r"cp(\d)(\d+)", tag) for tag in tags]
    return sorted((int(one[1]), int(one[2])) for one in matches if one)
