"""The indexes that may have a build, each queried once: the framework's own, and pip's."""

from __future__ import annotations

from collections.abc import Iterable

from flatout.compat.fit import Target
from flatout.compat.index_check import (
    IndexEntry,
    not_checked,
    unreached,
    wheel_project,
    with_wheel,
)
from flatout.compat.index_listing import has_wheel, wheels
from flatout.compat.rows import Build
from flatout.schema.versions import Pair
from flatout.setup.env.context import SetupContext
from flatout.system import package_index
from flatout.system.host_system import Unread
from flatout.system.http import without_password
from flatout.system.package_index_page import files_of

TORCH_INDEX = "https://download.pytorch.org/whl"


class IndexChoices:
    """The contents of the indexes, as far as they can be reached.

    Args:
        context: how they are reached.
        is_offline: no index is queried.
    """

    def __init__(self, context: SetupContext, *, is_offline: bool) -> None:
        self._context = context
        self._is_offline = is_offline
        self._seen: dict[tuple[str, str], tuple[str, ...] | Unread] = {}

    def own_index(self, build: Build) -> str | None:
        """The framework's own index for a build; None if the build is in the default index."""
        if build.is_in_default_index:
            return None
        return self.mirrored(build.index)

    def mirrored(self, index: str) -> str:
        """The address to use for an index: that of its mirror, if there is one."""
        mirror = (self._context.torch_mirror or "").rstrip("/")
        # A lock that was made with this mirror names it, without its password.
        for root in (TORCH_INDEX, without_password(mirror)) if mirror else ():
            if index == root or index.startswith(f"{root}/"):
                return mirror + index.removeprefix(root)
        return index

    def usual(self) -> tuple[str, ...]:
        """pip's own sources: its index, extra indexes, and folders of wheels."""
        indexes = self._context.indexes
        default = indexes.default or package_index.default_index()
        return (*((default,) if default else ()), *indexes.extra, *indexes.find_links)

    def files(self, project: str, index: str) -> tuple[str, ...] | Unread:
        """Names of a project's files in an index; why it cannot be read."""
        if (project, index) not in self._seen:
            self._seen[project, index] = files_of(project, index, self._context.opener)
        return self._seen[project, index]

    def unreached(self, index: str, *projects: str) -> str | None:
        """The error of an index about the first of these projects; None if it responds."""
        names = () if self._is_offline else self.files(projects[0], index)
        return f"{without_password(index)}: {names.reason}" if isinstance(names, Unread) else None

    def look_up(self, build: Build, python: Pair, target: Target) -> IndexEntry:
        """Whether a build's wheel exists; unknown where an index cannot be reached."""
        if self._is_offline:
            return not_checked(self._context.tables)
        own = self.own_index(build)
        indexes = [*([own] if own else []), *self.usual()]
        unread = [] if indexes else ["no index is configured"]
        for index in indexes:
            names = self.files(wheel_project(build), index)
            if isinstance(names, Unread):
                unread.append(f"{without_password(index)}: {names.reason}")
                continue
            # In pip's own indexes only the version label identifies the build.
            named = names if index == own or own is None else _labelled(names, build.cuda)
            if has_wheel(wheels(named, wheel_project(build)), build, python, target):
                return with_wheel(without_password(index), python)
        if unread:
            return unreached(build, unread[0])
        return IndexEntry(is_there=False, message="")


def _labelled(names: Iterable[str], cuda: str) -> list[str]:
    return [name for name in names if f"+{cuda}-" in name]
