"""The folder of a cluster: written without losing the user's edits, and found."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.setup.packages import flatout_wheel
from flatout.setup.packages.wheel_store import path_of
from flatout.system import atomic_files, edit_file

_RECORD = ".written-by-flatout.json"
# Owner of the files if root creates a cluster, since nothing in it runs as root.
_OTHER_THAN_ROOT = 1000


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of the files as they were written, by name."""

    digests: dict[str, str]


def write(folder: Path, texts: Mapping[str, str], *, is_forced: bool) -> tuple[str, ...]:
    """Writes a cluster's files and flatout's own wheel; gives their names.

    A file that has not been edited is rewritten; an edited one is not.

    Raises:
        UsageError: file-exists, folder-not-writable.
    """
    contents = {name: text.encode() for name, text in texts.items()}
    wheel = flatout_wheel.build()
    with atomic_files.mapped_os_errors(folder):
        contents[f"own/{path_of(wheel).name}"] = path_of(wheel).read_bytes()
        digests = _digests(folder)
        edited = [
            name for name, content in contents.items()
            if (there := edit_file.content_of(folder / name)) not in (None, content)
            and edit_file.digest(there) != digests.get(name)
        ]  # fmt: skip
        if edited and not is_forced:
            raise UsageError(
                "file-exists",
                f"{', '.join(edited)} in {folder} would be overwritten, but "
                f"{'was' if len(edited) == 1 else 'were'} edited.",
                fix="overwrite with --force, or write to another folder and compare",
            )
        _forget_wheels(folder, f"own/{path_of(wheel).name}")
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write_atomically(folder / name, content)
    record = _Record(
        digests={name: edit_file.digest(content) for name, content in contents.items()}
    )
    atomic_files.write_json(folder / _RECORD, record)
    return tuple(contents)


def refresh_wheel(folder: Path) -> bool:
    """Copies the running flatout into the image's folder; returns whether it replaced another."""
    wheel = path_of(flatout_wheel.build())
    target = folder / "own" / wheel.name
    with atomic_files.mapped_os_errors(target):
        content = wheel.read_bytes()
        if edit_file.content_of(target) == content:
            return False
        _forget_wheels(folder, f"own/{wheel.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_atomically(target, content)
    return True


def find(text: str | None) -> Path:
    """A cluster's folder: the given one, the current one, or `cluster` in it.

    Raises:
        UsageError: no-cluster-here.
    """
    folders = [Path(text)] if text else [Path(), Path("cluster")]
    for folder in folders:
        if (folder / "compose.yaml").is_file() and (folder / ".env").is_file():
            return folder.absolute()
    raise UsageError(
        "no-cluster-here",
        f"no cluster found in {folders[0].absolute()}.",
        because="compose.yaml or .env is missing",
        fix="create one: flatout cluster init; or give its folder: --in DIR",
    )


def read_settings(folder: Path) -> str:
    """The text of .env."""
    path = folder / ".env"
    with atomic_files.mapped_os_errors(path):
        return path.read_bytes().decode(errors="replace")


def write_settings(folder: Path, text: str) -> None:
    """Replaces the text of .env."""
    with atomic_files.mapped_os_errors(folder / ".env"):
        atomic_files.write_atomically(folder / ".env", text.encode())


def ensure_secret(path: Path, uid: int, gid: int) -> bool:
    """A random text in a file that only its owner reads, made once; whether it was made now.

    Where root makes it, it is given to the cluster's user, whose programs must read it.
    """
    with atomic_files.mapped_os_errors(path):
        if path.is_file() and path.stat().st_size:
            return False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        # Never readable by others, not even for a moment.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        os.replace(part, path)
    hand_over(path.parent, uid, gid)
    return True


def read_secret(path: Path) -> str | None:
    """The content of such a file; None if there is none."""
    with atomic_files.mapped_os_errors(path):
        return path.read_text(encoding="ascii", errors="ignore").strip() if path.is_file() else None


def owner() -> tuple[int, int]:
    """IDs of the user and group that own a cluster's files: those of the caller.

    With sudo, those of the invoking user; no one else may read the token.
    """
    if sys.platform == "win32":
        return _OTHER_THAN_ROOT, _OTHER_THAN_ROOT
    if os.getuid() == 0:
        ids = [os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID")]
        if all(re.fullmatch("[1-9][0-9]{0,8}", id_text) for id_text in ids):
            return int(ids[0]), int(ids[1])
        return _OTHER_THAN_ROOT, _OTHER_THAN_ROOT
    return os.getuid(), os.getgid()


def hand_over(path: Path, uid: int, gid: int) -> None:
    """Gives a folder and its content to the cluster's user, if root created it."""
    if sys.platform == "win32" or os.getuid() != 0:
        return
    with atomic_files.mapped_os_errors(path):
        for item in [path, *path.rglob("*")]:
            os.chown(item, uid, gid, follow_symlinks=False)


def ensure_shared(path: Path, uid: int, gid: int) -> bool:
    """Creates a folder that all nodes share; Docker would create it owned by root.

    If root created it, it is given to the cluster's user; returns whether that was needed.
    """
    with atomic_files.mapped_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32" or os.getuid() != 0 or path.stat().st_uid != 0:
            return False
        os.chown(path, uid, gid)
    return True


def _digests(folder: Path) -> dict[str, str]:
    path = folder / _RECORD
    return atomic_files.read_json(path, _Record).digests if path.is_file() else {}


def _forget_wheels(folder: Path, current: str) -> None:
    """Removes wheels of other versions of flatout, which pip might pick."""
    for path in (folder / "own").glob("flatout-*.whl"):
        if f"own/{path.name}" != current:
            path.unlink(missing_ok=True)
