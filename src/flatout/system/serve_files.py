"""What a running server leaves for other processes of its user: how `serve swap` reaches it."""

from __future__ import annotations

import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, UsageError
from flatout.schema.serve_control import ControlFile
from flatout.system import atomic_files, paths

_CONNECT_S = 2.0


def write_control(control: ControlFile) -> Path:
    """Writes the control file of a server, which only its user may read."""
    path = _folder() / f"{control.port}.json"
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = atomic_files.part_path(path)
        part.unlink(missing_ok=True)
        # Made with these rights: it is never open to others, not even for a moment.
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(control))
        os.replace(part, path)
    return path


def write_example(name: str, value: object) -> Path:
    """Writes the example request of a server into a file, which `curl` can send. name: its port,
    or its name on Ray.
    """
    path = _folder() / f"{name}-example.json"
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_atomically(path, msgspec.json.encode(value))
    return path


def remove(name: str) -> None:
    """Removes the files of a server."""
    for file in (f"{name}.json", f"{name}-example.json"):
        with contextlib.suppress(OSError):
            (_folder() / file).unlink(missing_ok=True)


def running_servers() -> list[ControlFile]:
    """The servers of this user; the files of those that have ended without removing them are
    removed.
    """
    known = []
    folder = _folder()
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if not path.stem.isdigit():
            continue
        try:
            control = atomic_files.read_json(path, ControlFile)
        except FlatoutError:
            # Damaged, or gone in this moment: there is no server that it leads to.
            continue
        known.append(control)
    # At once: one whose port is blocked does not keep the others waiting.
    with ThreadPoolExecutor(max(1, len(known))) as threads:
        are_open = list(threads.map(lambda control: _is_open(control.control_port), known))
    for control, is_open in zip(known, are_open, strict=True):
        if not is_open:
            remove(str(control.port))
    return [control for control, is_open in zip(known, are_open, strict=True) if is_open]


def _is_open(port: int) -> bool:
    # The number of its process proves nothing: another one may have it since.
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), _CONNECT_S):
        return True
    return False


def secret_of(text: str, option: str) -> str:
    """A secret as it was given: itself, or `@FILE` that holds it.

    Raises:
        UsageError: bad-token.
    """
    if text.startswith("@"):
        path = Path(text[1:]).expanduser()
        with atomic_files.mapped_os_errors(path):
            text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(
            "bad-token",
            f"`{option}` is not a token that clients can send.",
            because="it is empty, or has blanks or characters that a header cannot carry",
            fix="use letters and digits, such as the output of: openssl rand -hex 24",
        )
    return text


def _folder() -> Path:
    return paths.state_path("servers")
