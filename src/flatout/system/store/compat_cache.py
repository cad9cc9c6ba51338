"""The package indexes' additions to the shipped tables, as last kept."""

from __future__ import annotations

from typing import Any, TypeVar

from flatout.errors import RunFailed
from flatout.system import atomic_files, paths

T = TypeVar("T")


def read_update(kind: type[T]) -> T | None:
    """The kept update; None if there is nothing readable (it is rebuilt)."""
    path = paths.compat_update_file()
    try:
        return atomic_files.read_json(path, kind) if path.is_file() else None
    except RunFailed:
        return None


def keep_update(value: Any) -> None:
    """Keeps it, whole or not at all.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    path = paths.compat_update_file()
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write_json(path, value)
