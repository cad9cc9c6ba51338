"""Windows, WSL2 and Linux of the same PC: what to run, and the files of all of them together."""

from __future__ import annotations

import msgspec

from flatout.schema.bench_comparison import BenchComparison
from flatout.schema.tuning import Interval

PLATFORMS_VERSION = 1


class PlatformCommands(msgspec.Struct, frozen=True, kw_only=True):
    """What to run on a platform. where: in which shell. files: what is written there."""

    platform: str
    where: str
    commands: tuple[str, ...]
    files: tuple[str, ...]


class PlatformPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All commands. join: the command for the files, once they are in one folder."""

    platforms_version: int = PLATFORMS_VERSION
    platforms: tuple[PlatformCommands, ...]
    join: str
    notes: tuple[str, ...] = ()


class PlatformPart(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a platform makes slower, by a row of it or of all. ratio: above 1 is better.

    against: the platform, or the folder of the same one, that it is compared with.
    """

    platform: str
    what: str
    against: str
    ratio: Interval
    rows: tuple[str, ...]


class PlatformsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The joined files. platforms: the first one is what the others are compared with.

    missing: platforms without files. doubts: why the files may not be of one PC.
    """

    platforms_version: int = PLATFORMS_VERSION
    platforms: tuple[str, ...]
    files: tuple[str, ...]
    missing: tuple[str, ...]
    doubts: tuple[str, ...]
    parts: tuple[PlatformPart, ...]
    comparison: BenchComparison
