"""The contents of an environment: every package, as its own metadata tell it."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.framework import Framework

EnvironmentKind = Literal["venv", "conda"]


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """A package that is installed.

    requires: lines of its metadata. installer: who has put it there, like "pip" or "conda".
    is_requested: a user has asked for it by name. is_local: from a folder or an address, so that
    no index has it. size_bytes: of its files.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    installer: str | None = None
    is_requested: bool = False
    is_local: bool = False
    size_bytes: int | None = None


class InspectedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment of someone's. name: as it was requested; folder: its prefix.

    markers: what its interpreter reports for the markers of requirements ("python_version" ...).
    packages: by name, as names are compared.
    """

    name: str
    folder: str
    python: str
    kind: EnvironmentKind
    markers: dict[str, str]
    packages: dict[str, Installed]
    frameworks: tuple[Framework, ...] = ()

    @property
    def python_version(self) -> str:
        """Like "3.12"."""
        return self.markers.get("python_version", "")

    @property
    def versions(self) -> dict[str, str]:
        """Every package's version."""
        return {name: package.version for name, package in self.packages.items()}
