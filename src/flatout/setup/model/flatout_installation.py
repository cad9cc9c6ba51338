"""The way this flatout was installed, and the commands that change it."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.setup.model.disk_use import DiskUse

# script: install.sh or install.ps1. checkout: it runs from its source folder.
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


class SelfUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """An update to another version. after: the new version; None until it is done."""

    installation: Installation
    command: tuple[str, ...]
    after: str | None = None


class InstalledPart(msgspec.Struct, frozen=True, kw_only=True):
    """Something that `flatout self remove` takes away.

    name: the kind, or "edits" or "flatout". text: what that is, in words. cost: what is lost.
    paths: folders and files that are deleted. commands: what to run instead or besides.
    is_only_shown: the command is only shown, since flatout cannot run what removes it.
    """

    name: str
    text: str
    cost: str
    num_bytes: int = 0
    paths: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    is_only_shown: bool = False


class UninstallPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that will be removed, in order. kept: what stays, since its removal was not requested."""

    installation: Installation
    parts: tuple[InstalledPart, ...]
    kept: tuple[DiskUse, ...] = ()
