"""Recipes that were found by measuring, kept for the next time: one file each, by its key."""

from __future__ import annotations

from pathlib import Path

from flatout.errors import FlatoutError
from flatout.nouns.tuning import Known
from flatout.system import store
from flatout.system.folders import state_folder


def recipes_folder() -> Path:
    """Folder of all recipes that were found."""
    return state_folder() / "recipes"


def recall(key: str) -> Known | None:
    """What was found before under that key; a damaged file is as good as none."""
    path = _path(key)
    if not path.exists():
        return None
    try:
        return store.read_json(path, Known)
    except FlatoutError:
        # Found anew, it is written anew.
        return None


def keep(key: str, known: Known) -> None:
    """Keeps what was found."""
    path = _path(key)
    with store.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    store.write_json(path, known)


def forget_all() -> int:
    """Removes all recipes that were found; gives their number."""
    folder = recipes_folder()
    with store.mapped_os_errors(folder):
        paths = list(folder.glob("*.json")) if folder.is_dir() else []
        for path in paths:
            path.unlink(missing_ok=True)
    return len(paths)


def _path(key: str) -> Path:
    return recipes_folder() / f"{key}.json"
