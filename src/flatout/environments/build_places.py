"""The places where a build may be had, each asked once: a framework's own index, and pip's own."""

from __future__ import annotations

from collections.abc import Iterable

from flatout.environments.ground import Ground
from flatout.setup.checking import Seen, wheel_project
from flatout.setup.fit import Target
from flatout.setup.listing import has_wheel, wheels
from flatout.setup.rows import Build, Pair
from flatout.setup.versions import pair_text
from flatout.system import package_index
from flatout.system.opener import without_password
from flatout.system.simple_index import files_of
from flatout.system.system import Unread

TORCH_INDEX = "https://download.pytorch.org/whl"


class BuildPlaces:
    """What indexes have, as far as they can be asked.

    Args:
        ground: how they are reached.
        is_offline: nothing is asked.
    """

    def __init__(self, ground: Ground, *, is_offline: bool) -> None:
        self._ground = ground
        self._is_offline = is_offline
        self._seen: dict[tuple[str, str], tuple[str, ...] | Unread] = {}

    def own_index(self, build: Build) -> str | None:
        """The index of a build alone; None where it is in everybody's."""
        if build.is_in_default_index:
            return None
        return self.mirrored(build.index)

    def mirrored(self, index: str) -> str:
        """The address to ask for what lies in an index."""
        mirror = (self._ground.torch_mirror or "").rstrip("/")
        # A lock that was made with this mirror names it, without its password.
        for place in (TORCH_INDEX, without_password(mirror)) if mirror else ():
            if index == place or index.startswith(f"{place}/"):
                return mirror + index.removeprefix(place)
        return index

    def usual(self) -> tuple[str, ...]:
        """pip's own places: its index, further ones, and folders of wheels."""
        indexes = self._ground.indexes
        default = indexes.default or package_index.default_index()
        return (*((default,) if default else ()), *indexes.extra, *indexes.find_links)

    def files(self, project: str, place: str) -> tuple[str, ...] | Unread:
        """Names of a project's files in a place; why it cannot be read."""
        if (project, place) not in self._seen:
            self._seen[project, place] = files_of(project, place, self._ground.opener)
        return self._seen[project, place]

    def unreached(self, place: str, *projects: str) -> str | None:
        """Why a place cannot be asked about the first of these projects; None where it can."""
        names = () if self._is_offline else self.files(projects[0], place)
        return f"{without_password(place)}: {names.reason}" if isinstance(names, Unread) else None

    def look(self, build: Build, python: Pair, target: Target) -> Seen:
        """Whether a build's wheel is there; nobody can tell where a place cannot be reached."""
        if self._is_offline:
            read = self._ground.tables.read
            said = f"not checked with the index (--offline); the tables are of {read}"
            return Seen(is_there=None, said=said)
        own = self.own_index(build)
        places = [*([own] if own else []), *self.usual()]
        unread = [] if places else ["no index is known here"]
        for place in places:
            names = self.files(wheel_project(build), place)
            if isinstance(names, Unread):
                unread.append(f"{without_password(place)}: {names.reason}")
                continue
            # In pip's own places only a version's label tells the build.
            named = names if place == own or own is None else _labelled(names, build.cuda)
            if has_wheel(wheels(named, wheel_project(build)), build, python, target):
                told = f"{without_password(place)} has its wheel for Python {pair_text(python)}"
                return Seen(is_there=True, said=f"checked: {told}")
        if unread:
            return Seen(
                is_there=None,
                said=f"not checked: the index cannot be reached ({unread[0]}); "
                f"by the tables of {build.read} it has this build",
            )
        return Seen(is_there=False, said="")


def _labelled(names: Iterable[str], cuda: str) -> list[str]:
    return [name for name in names if f"+{cuda}-" in name]
