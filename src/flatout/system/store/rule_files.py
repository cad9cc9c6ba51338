"""The files of rules, the shipped and a user's own, and what was last made of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from flatout import __version__
from flatout.errors import FlatoutError
from flatout.system import atomic_files, paths

T = TypeVar("T")
# A file larger than this is no rule; nothing endless is read.
_MOST_BYTES = 256 * 1024


class RuleFile(NamedTuple):
    """A file and the folder it is in, which is its family."""

    path: Path
    family: str
    text: str


class OwnFiles(NamedTuple):
    """The files of a user's rules, and what is in their folder and cannot be one, with reasons."""

    files: tuple[Path, ...] = ()
    unread: tuple[str, ...] = ()


def own_rules() -> OwnFiles:
    """What is in the user's rules folder."""
    folder = paths.rules_folder()
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return OwnFiles()
    except NotADirectoryError:
        # Also if a folder above it is a file.
        why = "it is a file, and must be a folder with a file for each rule"
        return OwnFiles(unread=(f"{folder}: {why}",) if folder.exists() else ())
    except OSError as error:
        return OwnFiles(unread=(f"{folder}: {error.strerror or error}",))
    files, unread = [], []
    for path in (folder / name for name in names):
        if path.name.startswith("."):
            continue
        # Windows hides the ending of a file that an editor of texts has saved.
        if path.name.lower().endswith(".toml.txt"):
            unread.append(f"{path}: rename it to {path.name[:-4]}")
        elif path.name.endswith(".toml") or path.suffix.lower() == ".toml":
            if not path.is_file():
                unread.append(f"{path}: it is not a file")
            elif path.suffix != ".toml":
                unread.append(f"{path}: rename it to {path.stem}.toml")
            else:
                files.append(path)
    return OwnFiles(tuple(files), tuple(unread))


def shipped_rules(folder: Path) -> list[Path]:
    """All rules below a folder of the package."""
    return sorted(folder.glob("*/*.toml"))


def read_rule(path: Path) -> RuleFile:
    """A rule's file.

    Raises:
        OSError, ValueError: it cannot be read, is too large, or is not UTF-8.
    """
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES // 1024} KiB")
    return RuleFile(path, path.parent.name, content.decode("utf-8-sig"))


def stamp(files: Sequence[Path]) -> str:
    """Changes whenever one of these files does, or flatout is another version."""
    digest = hashlib.sha256(__version__.encode())
    for path, status in _statuses(files):
        # The mode, because a file that could not be read may be readable now.
        facts = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_mode}\n"
        digest.update(facts.encode(errors="replace"))
    return digest.hexdigest()


def _statuses(files: Sequence[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in files:
        with contextlib.suppress(OSError):
            yield path, path.stat()


def recall(kind: type[T]) -> T | None:
    """What was last made of the files; None if there is nothing readable."""
    path = paths.compiled_rules_file()
    try:
        if not path.is_file() or _is_of_others(path):
            return None
        return atomic_files.read_json(path, kind)
    except (FlatoutError, OSError, RecursionError):
        return None


def _is_of_others(path: Path) -> bool:
    """Whether another user wrote it: rules may name functions."""
    if sys.platform == "win32":
        return False
    return path.stat().st_uid not in (os.getuid(), 0)


def keep(value: object) -> None:
    """Keeps it for the next process; where that is not possible, each makes it again."""
    path = paths.compiled_rules_file()
    with contextlib.suppress(FlatoutError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_json(path, value)
