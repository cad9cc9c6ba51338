"""What the package indexes had beside the shipped tables, as it was last kept."""

from __future__ import annotations

from typing import Any, TypeVar

from flatout.errors import RunFailed
from flatout.system import folders, store

T = TypeVar("T")


def read_update(kind: type[T]) -> T | None:
    """What was kept; None where there is nothing, or nothing that can be read: it is made again."""
    path = folders.compat_update_file()
    try:
        return store.read_json(path, kind) if path.is_file() else None
    except RunFailed:
        return None


def keep_update(value: Any) -> None:
    """Keeps it, whole or not at all.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    path = folders.compat_update_file()
    with store.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    store.write_json(path, value)
