"""The folder of a cluster: written without losing what a person has changed in it, and found."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.system import own_wheel, rewriting, store
from flatout.system.wheel_store import path_of

_RECORD = ".written-by-flatout.json"
# Whom files belong to where root makes a cluster, since nothing in it runs as root.
_OTHER_THAN_ROOT = 1000


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of the files as they were written, by name."""

    digests: dict[str, str]


def write(folder: Path, texts: Mapping[str, str], *, is_forced: bool) -> tuple[str, ...]:
    """Writes a cluster's files and flatout's own wheel; gives their names.

    A file that is as flatout has written it before is written anew; an edited one is not.

    Raises:
        UsageError: file-exists, folder-not-writable.
    """
    contents = {name: text.encode() for name, text in texts.items()}
    wheel = own_wheel.build()
    with store.mapped_os_errors(folder):
        contents[f"own/{path_of(wheel).name}"] = path_of(wheel).read_bytes()
        digests = _digests(folder)
        edited = [
            name for name, content in contents.items()
            if (there := rewriting.content_of(folder / name)) not in (None, content)
            and rewriting.digest(there) != digests.get(name)
        ]  # fmt: skip
        if edited and not is_forced:
            raise UsageError(
                "file-exists",
                f"{', '.join(edited)} in {folder} would be overwritten, and "
                f"{'was' if len(edited) == 1 else 'were'} changed since.",
                fix="--force overwrites; or write into another folder and compare",
            )
        _forget_wheels(folder, f"own/{path_of(wheel).name}")
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            store.write_atomically(folder / name, content)
    record = _Record(
        digests={name: rewriting.digest(content) for name, content in contents.items()}
    )
    store.write_json(folder / _RECORD, record)
    return tuple(contents)


def refresh_wheel(folder: Path) -> bool:
    """Puts the flatout that is running into the image's folder; whether it was another before."""
    wheel = path_of(own_wheel.build())
    target = folder / "own" / wheel.name
    with store.mapped_os_errors(target):
        content = wheel.read_bytes()
        if rewriting.content_of(target) == content:
            return False
        _forget_wheels(folder, f"own/{wheel.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        store.write_atomically(target, content)
    return True


def find(text: str | None) -> Path:
    """A cluster's folder: the one named, this one, or `cluster` in it.

    Raises:
        UsageError: no-cluster-here.
    """
    places = [Path(text)] if text else [Path(), Path("cluster")]
    for place in places:
        if (place / "compose.yaml").is_file() and (place / ".env").is_file():
            return place.absolute()
    raise UsageError(
        "no-cluster-here",
        f"there is no cluster in {places[0].absolute()}.",
        because="compose.yaml or .env is missing",
        fix="make one: flatout cluster init; or name its folder: --in DIR",
    )


def read_settings(folder: Path) -> str:
    """The text of .env."""
    path = folder / ".env"
    with store.mapped_os_errors(path):
        return path.read_bytes().decode(errors="replace")


def write_settings(folder: Path, text: str) -> None:
    """Another text of .env."""
    with store.mapped_os_errors(folder / ".env"):
        store.write_atomically(folder / ".env", text.encode())


def ensure_secret(path: Path, uid: int, gid: int) -> bool:
    """A random text in a file that only its owner reads, made once; whether it was made now.

    Where root makes it, it is given to the cluster's user, whose programs are to read it.
    """
    with store.mapped_os_errors(path):
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
    """What such a file holds; None where there is none."""
    with store.mapped_os_errors(path):
        return path.read_text(encoding="ascii", errors="ignore").strip() if path.is_file() else None


def owner() -> tuple[int, int]:
    """Numbers of the user and group that a cluster's files belong to: whoever is asking.

    With sudo, that is the person who has typed it; the token must not go to anybody else.
    """
    if sys.platform == "win32":
        return _OTHER_THAN_ROOT, _OTHER_THAN_ROOT
    if os.getuid() == 0:
        asked = [os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID")]
        if all(re.fullmatch("[1-9][0-9]{0,8}", one) for one in asked):
            return int(asked[0]), int(asked[1])
        return _OTHER_THAN_ROOT, _OTHER_THAN_ROOT
    return os.getuid(), os.getgid()


def hand_over(path: Path, uid: int, gid: int) -> None:
    """Gives a folder with all in it to the cluster's user, where root has made it."""
    if sys.platform == "win32" or os.getuid() != 0:
        return
    with store.mapped_os_errors(path):
        for one in [path, *path.rglob("*")]:
            os.chown(one, uid, gid, follow_symlinks=False)


def ensure_shared(path: Path, uid: int, gid: int) -> bool:
    """A folder that all nodes share; Docker would make a missing one for root.

    Where root has made it, it is given to the cluster's user; whether that was needed.
    """
    with store.mapped_os_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32" or os.getuid() != 0 or path.stat().st_uid != 0:
            return False
        os.chown(path, uid, gid)
    return True


def _digests(folder: Path) -> dict[str, str]:
    path = folder / _RECORD
    return store.read_json(path, _Record).digests if path.is_file() else {}


def _forget_wheels(folder: Path, kept: str) -> None:
    """Wheels of other versions of flatout, of which pip would take any."""
    for path in (folder / "own").glob("flatout-*.whl"):
        if f"own/{path.name}" != kept:
            path.unlink(missing_ok=True)
