"""Whether the wheel of a build is among the files of a package index.

Source: PEP 427 (names of wheels).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from flatout.compat.fit import Target
from flatout.compat.rows import Build
from flatout.schema.versions import Pair


class Wheel(msgspec.Struct, frozen=True):
    """A wheel by its name; local: of its version, like "cu126"."""

    version: str
    local: str
    pythons: tuple[str, ...]
    abi: str
    platforms: tuple[str, ...]


def wheels(names: Iterable[str], project: str) -> Iterator[Wheel]:
    """The names that are wheels of a project."""
    wheel_project = re.sub(r"[-_.]+", "_", project).lower()
    for name in names:
        parts = name.removesuffix(".whl").split("-")
        if not name.endswith(".whl") or len(parts) not in (5, 6):
            continue
        if re.sub(r"[-_.]+", "_", parts[0]).lower() == wheel_project:
            version, _, local = parts[1].partition("+")
            pythons, abi, platforms = parts[-3:]
            yield Wheel(version, local, tuple(pythons.split(".")), abi, tuple(platforms.split(".")))


def has_wheel(wheels: Iterable[Wheel], build: Build, python: Pair, target: Target) -> bool:
    """Whether a build's wheel for a Python and a system is among them."""
    is_nightly = build.is_nightly
    return any(
        (is_nightly or wheel.version == build.version)
        and wheel.local in ("", build.cuda)
        and _is_for_python(wheel, python)
        and any(_is_for_system(platform, target) for platform in wheel.platforms)
        for wheel in wheels
    )


def _is_for_python(wheel: Wheel, python: Pair) -> bool:
    own = f"cp{python[0]}{python[1]}"
    if own in wheel.pythons:
        # cp314t is the free-threaded build.
        return wheel.abi in (own, f"{own}m", "abi3", "none")
    return "py3" in wheel.pythons or wheel.abi == "abi3"


def _is_for_system(platform: str, target: Target) -> bool:
    if platform == "any":
        return True
    if target.os == "windows":
        return platform == {"x86_64": "win_amd64", "aarch64": "win_arm64"}.get(target.machine)
    if target.os == "macos":
        name = {"aarch64": "arm64"}.get(target.machine, target.machine)
        return platform.startswith("macosx") and platform.endswith((name, "universal2"))
    return "linux" in platform and platform.endswith(target.machine)
