"""Recipes that were found by measuring, kept for the next time: one file each, by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, UsageError
from flatout.schema.recipe import Recipe, check_field, recipe_fields
from flatout.schema.tuning import Known
from flatout.system import atomic_files
from flatout.system.paths import state_path


def recipes_folder() -> Path:
    """Folder of all recipes that were found."""
    return state_path("recipes")


def recall(key: str) -> Known | None:
    """The result kept under that key; a damaged file is as good as none."""
    path = _path(key)
    if not path.exists():
        return None
    try:
        return atomic_files.read_json(path, Known)
    except FlatoutError:
        # Found again, it is rewritten.
        return None


def keep(key: str, known: Known) -> None:
    """Keeps what was found."""
    path = _path(key)
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write_json(path, known)


def drop(key: str) -> None:
    """Forgets what was found under that key."""
    path = _path(key)
    with atomic_files.mapped_os_errors(path):
        path.unlink(missing_ok=True)


def fields_in(path: Path) -> dict[str, Any]:
    """The fields of a recipe in a file, such as a search leaves, with their values.

    Args:
        path: of the file; `~` is the user's home.

    Raises:
        UsageError: recipe-not-readable, bad-recipe-value.
    """
    try:
        recipe = atomic_files.read_json(path.expanduser(), Recipe)
    except FlatoutError as error:
        raise UsageError(
            "recipe-not-readable",
            f"cannot read a recipe from {path}.",
            because=error.because,
            fix="give the `recipe.json` that `flatout tune` wrote in its folder",
        ) from error
    names = list(recipe_fields())
    # What has no effect would only be warned of.
    if recipe.data_path.value in ("sliced", "resident"):
        names = [name for name in names if not name.startswith("loader_")]
    elif recipe.loader_workers.value == 0:
        names = [name for name in names if name not in ("loader_prefetch", "loader_persistent")]
    elif recipe.data_path.value == "cached":
        names.remove("loader_persistent")
    return {name: check_field(name, getattr(recipe, name).value) for name in names}


def left_to_ranks(fields: dict[str, Any]) -> tuple[str, ...]:
    """The fields of a recipe, if set, that apply to one process with a machine to itself.

    Each of several ranks would take all threads, and all of them the same CPUs; what is recorded or
    compiled does not fit them.
    """
    is_set = {
        "num_threads": True,
        "cpu_affinity": fields.get("cpu_affinity") != "all",
        "capture": fields.get("capture") != "off",
        "steps_per_launch": fields.get("capture") != "off",
        "compiled": fields.get("compiled") != "off",
        "compile_mode": fields.get("compiled") != "off",
    }
    return tuple(name for name in fields if is_set.get(name))


def forget_recipes() -> int:
    """Removes all recipes that were found; gives their number."""
    folder = recipes_folder()
    with atomic_files.mapped_os_errors(folder):
        paths = list(folder.glob("*.json")) if folder.is_dir() else []
        for path in paths:
            path.unlink(missing_ok=True)
    return len(paths)


def _path(key: str) -> Path:
    return recipes_folder() / f"{key}.json"
