"""How this flatout came here, and what would change that."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.nouns.disk_use import DiskUse

# script: install.sh or install.ps1. checkout: its sources are run where they lie.
Way = Literal["script", "uv", "pipx", "pip", "conda", "checkout"]


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """This flatout.

    folder: its environment. checkout: the folder of the sources that are run, if any.
    has_pip: that environment has pip. launcher, profiles: what the install script made and edited.
    """

    version: str
    way: Way
    python: str
    folder: str
    has_pip: bool = True
    checkout: str | None = None
    launcher: str | None = None
    profiles: tuple[str, ...] = ()


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What brings another version, and the versions before and after; after None: not done."""

    installation: Installation
    command: tuple[str, ...]
    after: str | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Something that `flatout self remove` takes away.

    name: the kind, or "edits" or "flatout". text: what that is, in words. cost: what is lost.
    paths: folders and files that are deleted. commands: what to run instead or besides.
    is_only_told: the command cannot be run by the program that it removes.
    """

    name: str
    text: str
    cost: str
    num_bytes: int = 0
    paths: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    is_only_told: bool = False


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """All that can be taken away, in its order. kept: what stays, since nobody asked for it."""

    installation: Installation
    parts: tuple[Part, ...]
    kept: tuple[DiskUse, ...] = ()
