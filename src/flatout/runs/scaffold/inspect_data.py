"""Input and output of `flatout new`: inspects the user's data and writes a file."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import math
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, UsageError, nearest
from flatout.runs.model.new_experiment import (
    CONTENT_OF,
    DATA_OF,
    NewExperiment,
    NewExperimentRequest,
)
from flatout.schema.ingest_protocol import ShardManifest
from flatout.system.atomic_files import mapped_os_errors, write_atomically
from flatout.system.store.shards import MANIFEST, ShardFolder

# Of a CSV file, so many rows show what a column holds; more different numbers are no classes.
_ROWS_SEEN, _MOST_CLASSES = 1000, 100


def settled_path(text: str) -> tuple[str, bool]:
    """The path of the user's data: relative to this folder if it is inside it, else absolute.

    Returns:
        The path with slashes, and whether it is relative.

    Raises:
        UsageError: data-path-not-found.
    """
    path = Path(text).expanduser().absolute()
    with mapped_os_errors(path):
        is_there = path.exists()
    if not is_there:
        beside = [sibling.name for sibling in path.parent.glob("*")] if path.parent.is_dir() else []
        raise UsageError(
            "data-path-not-found",
            f"{text} does not exist.",
            because=None if Path(text).is_absolute() else f"its full path is {path}",
            fix=nearest(path.name, beside)
            if beside
            else "give the path of a file or folder that exists",
        )
    here = Path.cwd()
    is_below = path.is_relative_to(here) and path != here
    return (path.relative_to(here) if is_below else path).as_posix(), is_below


def proposed_task(request: NewExperimentRequest) -> str:
    """The task of a request; if it names none, regression for a CSV column of quantities."""
    if request.task is None and request.path is not None and request.settled_data == "csv":
        path = Path(request.path).expanduser()
        if _is_csv_file(path) and _holds_quantities(path, request.target):
            return "regression"
    return request.settled_task


def _is_csv_file(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() == ".csv"


def _holds_quantities(path: Path, target: str | None) -> bool:
    """Whether the column to predict has fractions, or too many different numbers for classes."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            name = target or (rows.fieldnames or [""])[-1]
            seen = itertools.islice(rows, _ROWS_SEEN)
            known = (float(row[name]) for row in seen if row.get(name))
            # No two NaN are equal: each missing value would be another number.
            numbers = {number for number in known if math.isfinite(number)}
    except (OSError, ValueError, csv.Error):
        return False  # Texts; or what is wrong with the file is reported when it is read.
    is_whole = all(number.is_integer() for number in numbers)
    return len(numbers) > _MOST_CLASSES or not is_whole


def settled_target(text: str, kind: str, target: str | None) -> str:
    """The column to predict: the requested one, or the last one of a CSV file.

    Only local CSV files are read: other formats need more than Python.

    Raises:
        UsageError: column-not-found, table-not-readable.
    """
    path = Path(text).expanduser()
    if kind != "csv" or not _is_csv_file(path):
        return target or "target"
    try:
        with mapped_os_errors(path), open(path, encoding="utf-8-sig", newline="") as file:
            columns = next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_readable(path, str(error)) from error
    if not columns:
        raise _not_readable(path, "its first line is empty; it should name the columns")
    if target is not None and target not in columns:
        raise UsageError(
            "column-not-found",
            f"{text} has no column `{target}`.",
            fix=nearest(target, columns),
        )
    return target or columns[-1]


def recognized(request: NewExperimentRequest) -> NewExperimentRequest:
    """The request, with `--data shards` if its path is a folder of shards."""
    if request.path is None or request.data not in (None, "shards"):
        return request
    try:
        manifest = ShardFolder(Path(request.path).expanduser()).read_manifest()
    except FlatoutError:
        if request.data is not None:
            raise
        # The manifest.json of another program.
        return request
    if manifest is None:
        return request
    tasks = _tasks_of(manifest)
    task = tasks[0] if request.task is None and len(tasks) == 1 else request.task
    return msgspec.structs.replace(request, data="shards", task=task)


def of_shards(draft: NewExperiment, request: NewExperimentRequest) -> NewExperiment:
    """The sketch of an experiment on shards, completed from their manifest.

    Raises:
        UsageError: no-shards, data-for-another-task, column-not-found, no-data.
    """
    path = Path(request.path or "").expanduser()
    manifest = ShardFolder(path).read_manifest()
    if manifest is None:
        raise UsageError(
            "no-shards",
            f"{path} holds no shards.",
            because=f"it has no {MANIFEST}, which is written once all shards are complete",
            fix=f"flatout ingest SOURCE {path}",
        )
    kind, tasks = manifest.settings.kind, _tasks_of(manifest)
    task = request.task or tasks[0]
    if task not in tasks:
        raise UsageError(
            "data-for-another-task",
            f"there is no template for the task {task} with shards of {kind}.",
            fix=nearest(task, tasks),
        )
    held_out = next((part for part in ("validation", "test") if manifest.counts.get(part)), None)
    if held_out is None or not manifest.counts.get("train"):
        raise UsageError(
            "no-data",
            f"{path} does not have both records to train on and records to validate on.",
            fix="ingest it into another folder, with a share for each: --validation 0.1",
        )
    columns = [column.name for column in manifest.settings.columns]
    if request.target is not None and request.target not in columns:
        raise UsageError(
            "column-not-found",
            f"the shards in {path} have no column `{request.target}`.",
            fix=nearest(request.target, columns) if columns else "leave --target out",
        )
    target = (request.target or columns[-1]) if columns else None
    return msgspec.structs.replace(
        draft, task=task, ingested=kind, held_out=held_out, target=target
    )


def _tasks_of(manifest: ShardManifest) -> tuple[str, ...]:
    """The tasks that shards can be used for."""
    kind = manifest.settings.kind
    if kind == "idx":
        # Class numbers are not quantities, so no regression.
        return ("classification",)
    return tuple(task for task, content in DATA_OF.items() if CONTENT_OF[kind] in content)


def write_new(name: str, text: str, *, is_forced: bool) -> Path:
    """Writes an experiment's file into this folder.

    Raises:
        UsageError: bad-experiment-name, file-exists.
    """
    path = Path(f"{name}.py").absolute()
    taken = _module_elsewhere(name, path.parent)
    if taken is not None:
        raise UsageError(
            "bad-experiment-name",
            f"an experiment cannot be named `{name}`.",
            because=f"`import {name}` already finds another module: {taken}",
            fix=f"use another name: flatout new my_{name}",
        )
    if path.exists() and not is_forced:
        raise UsageError(
            "file-exists",
            f"{path.name} already exists.",
            because="its contents would be lost",
            fix="choose another name, or overwrite it with --force",
        )
    write_atomically(path, text.encode())
    return path


def _module_elsewhere(name: str, folder: Path) -> str | None:
    """The path of another module of that name outside this folder; None if there is none."""
    package = folder / name / "__init__.py"
    if package.is_file():
        # Python prefers it to a file of the same name.
        return str(package)
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        return f"`{name}` is already loaded"
    if spec is None:
        return None
    if spec.origin is None or not spec.has_location:
        # Python prefers a file to a folder without `__init__.py`, unless it finds the file later.
        folders = [Path(location) for location in spec.submodule_search_locations or ()]
        is_here = all(directory.absolute().parent == folder for directory in folders) and bool(
            folders
        )
        return None if is_here else str(folders[0] if folders else name)
    return None if Path(spec.origin).absolute().parent == folder else spec.origin


def _not_readable(path: Path, because: str) -> UsageError:
    return UsageError(
        "table-not-readable",
        f"{path} cannot be read as a CSV file.",
        because=because,
        fix="save it as UTF-8 with the column names in the first line",
    )
