"""What `flatout new` reads and writes: a person's data is looked at, a file is made."""

from __future__ import annotations

import csv
from pathlib import Path

from flatout.errors import UsageError, nearest
from flatout.system.store import mapped_os_errors, write_atomically


def settled_path(text: str) -> tuple[str, bool]:
    """Where a person's data is: relative to this folder if it lies below it, else absolute.

    Returns:
        The path with slashes, and whether it is relative.

    Raises:
        UsageError: data-path-not-found.
    """
    path = Path(text).expanduser().absolute()
    with mapped_os_errors(path):
        is_there = path.exists()
    if not is_there:
        beside = [one.name for one in path.parent.glob("*")] if path.parent.is_dir() else []
        raise UsageError(
            "data-path-not-found",
            f"there is nothing at {text}.",
            because=f"looked for {path}",
            fix=nearest(path.name, beside) if beside else "give a path that is there",
        )
    here = Path.cwd()
    is_below = path.is_relative_to(here) and path != here
    return (path.relative_to(here) if is_below else path).as_posix(), is_below


def settled_target(text: str, kind: str, target: str | None) -> str:
    """The column to be predicted: the one asked for, or a CSV file's last.

    Only CSV files of one's own are looked into: anything else needs more than Python.

    Raises:
        UsageError: column-not-found, table-not-readable.
    """
    path = Path(text).expanduser()
    if kind != "csv" or not path.is_file() or path.suffix.lower() != ".csv":
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


def write_new(name: str, text: str, *, is_forced: bool) -> Path:
    """Writes an experiment's file into this folder.

    Raises:
        UsageError: file-exists.
    """
    path = Path(f"{name}.py").absolute()
    if path.exists() and not is_forced:
        raise UsageError(
            "file-exists",
            f"{path.name} is already there.",
            because="what is in it would be lost",
            fix="choose another name, or overwrite it with --force",
        )
    write_atomically(path, text.encode())
    return path


def _not_readable(path: Path, because: str) -> UsageError:
    return UsageError(
        "table-not-readable",
        f"{path} cannot be read as a CSV file.",
        because=because,
        fix="save it as UTF-8 with the names of its columns in the first line",
    )
