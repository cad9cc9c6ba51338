"""A folder as it is, kept by hard links: quick, and without room until a file is replaced.

Package installers write new files in the place of old ones, never into them, so a link
holds what was there. Compiled Python (`__pycache__`) is left out: Python makes it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from flatout.errors import UsageError
from flatout.system.atomic_files import mapped_os_errors, read_json, sync_folder, write_json

# Folder in a kept one for what is kept of it: on the same disk, so that links are possible.
KEPT = ".flatout"
_LEFT_OUT = {"__pycache__"}

Kind = Literal["file", "link", "folder"]


class SeenFiles(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of a path, known without reading it. size and time are 0 but for files."""

    kind: Kind
    size: int = 0
    time_ns: int = 0
    target: str = ""


class TreeManifest(msgspec.Struct, frozen=True):
    """All paths below a folder, as they were."""

    paths: dict[str, SeenFiles]


def keep_tree(root: Path, copy: Path) -> None:
    """Keeps all files below a folder as hard links; where there can be none, as copies.

    Args:
        root: the folder.
        copy: a new folder for the links; it counts once its manifest is written, which is last.
    """
    with mapped_os_errors(copy):
        copy.mkdir(parents=True)
        paths = dict(_walk(root))
        for name, seen in paths.items():
            target = copy / "files" / name
            if seen.kind == "folder":
                target.mkdir(parents=True, exist_ok=True)
            elif seen.kind == "file":
                target.parent.mkdir(parents=True, exist_ok=True)
                _link(root / name, target)
    write_json(copy / "manifest.json", TreeManifest(paths))


def tree_digest(root: Path) -> str:
    """A digest of the names, sizes and times below a folder; nothing is read."""
    whole = hashlib.sha256()
    with mapped_os_errors(root):
        for name, seen in sorted(_walk(root)):
            whole.update(f"{name}\0{seen.kind}\0{seen.size}\0{seen.time_ns}\0{seen.target}\n".encode(
                errors="surrogateescape"))  # fmt: skip
    return whole.hexdigest()


def restore_tree(copy: Path, root: Path) -> list[str]:
    """Makes a folder what it was when it was kept; names what could not be put back.

    It can be interrupted and repeated. Without a manifest nothing had been changed yet.
    """
    manifest = copy / "manifest.json"
    if not manifest.exists():
        return []
    before = read_json(manifest, TreeManifest).paths
    left = []
    with mapped_os_errors(root):
        now = dict(_walk(root))
        for name in sorted(now.keys() - before.keys(), reverse=True):
            _take_out(root / name, now[name])
        for name, seen in before.items():
            if now.get(name) == seen:
                continue
            path = root / name
            if name in now:
                _take_out(path, now[name])
            path.parent.mkdir(parents=True, exist_ok=True)
            if seen.kind == "folder":
                path.mkdir(exist_ok=True)
            elif seen.kind == "link":
                path.symlink_to(seen.target)
            elif (copy / "files" / name).exists():
                _link(copy / "files" / name, path)
            else:
                left.append(str(path))
    return left


def prune(copy: Path, root: Path) -> None:
    """Gives up the links to files that are as they were: nothing needs to put them back.

    Otherwise what someone removes later would still take its room.
    """
    before = read_json(copy / "manifest.json", TreeManifest).paths
    with mapped_os_errors(copy):
        now = dict(_walk(root))
        for name, seen in before.items():
            if seen.kind == "file" and now.get(name) == seen:
                (copy / "files" / name).unlink(missing_ok=True)


def forget(copy: Path) -> None:
    """Removes what was kept, and the folder above it where nothing else is kept there."""
    remove_tree(copy)
    with contextlib.suppress(OSError):
        copy.parent.rmdir()


def remove_tree(folder: Path) -> None:
    """Removes a folder with all in it; one that is missing is fine."""
    with mapped_os_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)


def move(source: Path, target: Path) -> None:
    """Gives a file or folder another name on the same disk; durable when this returns.

    Raises:
        UsageError: place-taken.
    """
    if target.exists():
        raise UsageError(
            "place-taken", f"{target} already exists.", fix="move it away, then try again"
        )
    with mapped_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)
        sync_folder(target.parent)


def _walk(root: Path) -> Iterator[tuple[str, SeenFiles]]:
    """Every path below a folder, relative to it, outer ones first."""
    for folder, names, files in os.walk(root):
        here = Path(folder)
        is_top = here == root
        names[:] = [
            name
            for name in sorted(names)
            if name not in _LEFT_OUT and not (is_top and name == KEPT)
        ]
        for name in [*names, *sorted(files)]:
            path = here / name
            relative = path.relative_to(root).as_posix()
            if path.is_symlink():
                yield relative, SeenFiles("link", target=os.readlink(path))
            elif name in names:
                yield relative, SeenFiles("folder")
            else:
                status = path.lstat()
                yield relative, SeenFiles("file", status.st_size, status.st_mtime_ns)


def _link(source: Path, target: Path) -> None:
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        # FAT, 9p and some network shares have no hard links.
        shutil.copy2(source, target)


def _take_out(path: Path, seen: SeenFiles) -> None:
    if seen.kind == "folder":
        # Compiled Python of what was removed.
        shutil.rmtree(path / "__pycache__", ignore_errors=True)
        with contextlib.suppress(OSError):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)
