"""Pages of package indexes, cached for a day: queried as pip and uv are configured."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError
from flatout.system import atomic_files, clock, paths, site_policy
from flatout.system.host_system import Unread
from flatout.system.http import opener_for, without_password
from flatout.system.package_index_page import files_of
from flatout.system.pip_config import read_indexes

_MAX_AGE_S = 24 * 3600.0


class IndexPage(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the files that an index had for a project, at a time (seconds since 1970)."""

    names: tuple[str, ...]
    read_at: float


def read_page(index: str | None, project: str, *, may_use_cache: bool = True) -> IndexPage | Unread:
    """The page of a project in an index.

    Args:
        index: address of the index; None is the one that pip queries by default.
        project: as its pages name it.
        may_use_cache: a page that was read within a day will do.

    Returns:
        The page, empty where the index has no such project, or why it is not available.
    """
    url = index or default_index()
    if url is None:
        return Unread("no pip found whose configuration names the index")
    cached = _cache_file(url, project)
    if may_use_cache and (page := _read_cached(cached)):
        return page
    try:
        names = files_of(project, url, opener_for(read_indexes()))
    except FlatoutError as error:
        names = Unread(error.problem)
    if isinstance(names, Unread):
        return Unread(f"{without_password(url).rstrip('/')}/{project}: {names.reason}")
    page = IndexPage(names=names, read_at=clock.now_s())
    try:
        with atomic_files.mapped_os_errors(cached):
            cached.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(cached, page)
    except FlatoutError:
        pass  # It is queried again next time.
    return page


def default_index() -> str | None:
    """The address of the index that pip queries: the user's, else the one that pip knows."""
    return read_indexes().default or site_policy.read_site().mirrors.packages or _pips_index()


def _pips_index() -> str | None:
    try:
        known = importlib.import_module("pip._internal.models.index")
    except ImportError:
        return None
    return getattr(getattr(known, "PyPI", None), "simple_url", None)


def _cache_file(index: str, project: str) -> Path:
    digest = hashlib.sha256(f"{index} {project}".encode()).hexdigest()[:16]
    return paths.state_path("indexes") / f"{project}-{digest}.json"


def _read_cached(path: Path) -> IndexPage | None:
    try:
        page = atomic_files.read_json(path, IndexPage) if path.is_file() else None
    except FlatoutError:
        return None
    return page if page and 0 <= clock.now_s() - page.read_at < _MAX_AGE_S else None
