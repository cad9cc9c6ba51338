"""Other people's files, read and rewritten: whole or not at all, and still theirs afterwards.

Permissions, owner and links stay. What only root may write is written through sudo.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import RunFailed, UsageError
from flatout.system import command
from flatout.system.atomic_files import mapped_os_errors, move_into_place

_SUDO_LIMIT_S = 300.0

# What is written next to the file takes its permissions and owner from it, then its place.
PUT = """
set -e
part="$2.flatout-part"
mkdir -p -- "$(dirname -- "$2")"
if [ -e "$2" ]; then cp -p -- "$2" "$part"; fi
cat -- "$1" > "$part"
if [ "$3" = x ]; then chmod 755 -- "$part"; fi
sync
mv -f -- "$part" "$2"
"""
_REMOVE = 'rm -f -- "$1" "$1.flatout-part"'


def real_path(path: str) -> Path:
    """A path with ~ and all links followed: what is written is the file, never the link to it."""
    return Path(os.path.realpath(os.path.expanduser(path)))


def content_of(path: Path) -> bytes | None:
    """A file's bytes; None where there is no file.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    with mapped_os_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def digest(content: bytes | None) -> str:
    """SHA-256 of a file's bytes; a word of its own for no file."""
    return "absent" if content is None else hashlib.sha256(content).hexdigest()


def missing_folders(path: Path) -> tuple[str, ...]:
    """The folders above a path that are missing, from the outermost on."""
    return tuple(str(folder) for folder in reversed(path.parents) if not folder.exists())


def is_root() -> bool:
    """Whether this process may write everything: root, or Windows' administrator."""
    if sys.platform == "win32":
        import ctypes

        return bool(ctypes.windll.shell32.IsUserAnAdmin())
    return os.geteuid() == 0


def run_as_root(argv: Sequence[str], timeout_s: float) -> command.Completed:
    """Runs a program as root: as it is where this process is root, else through sudo.

    sudo asks for the password itself, on the terminal.

    Raises:
        UsageError: root-needed.
    """
    if is_root():
        return command.run(argv, timeout_s)
    sudo = shutil.which("sudo")
    if sudo is None:
        raise UsageError(
            "root-needed",
            f"`{' '.join(argv[:3])}` needs root, but sudo is not installed.",
            fix="run it as root"
            if sys.platform != "win32"
            else "run it in a PowerShell started as administrator",
        )
    return command.run_attached([sudo, "--", *argv], timeout_s)


def put(
    path: Path, content: bytes, *, needs_root: bool = False, is_executable: bool = False
) -> None:
    """Writes a file whole or not at all, with the permissions and owner of the one it replaces.

    Args:
        path: without links; see `real_path`.
        content: all of it.
        needs_root: it is written through sudo, unless this process is root.
        is_executable: all who may read it may run it.

    Raises:
        UsageError: folder-not-writable, root-needed.
        RunFailed: disk-full, file-not-accessible, step-failed.
    """
    if needs_root and not is_root():
        _put_by_sudo(path, content, is_executable=is_executable)
        return
    part = part_path(path)
    with mapped_os_errors(path):
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission to write the file")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_synced(part, content, is_private=path.exists())
            _take_after(path, part)
            if is_executable and sys.platform != "win32":
                mode = part.stat().st_mode
                # Each r bit is two places above its x bit.
                part.chmod(mode | (mode & 0o444) >> 2)
            move_into_place(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def part_path(path: Path) -> Path:
    """The path of an unfinished file."""
    return path.with_name(f"{path.name}.flatout-part")


def remove(path: Path, *, needs_root: bool = False) -> None:
    """Removes a file, and what a crash has left next to it.

    Raises:
        UsageError: folder-not-writable, root-needed.
        RunFailed: step-failed.
    """
    if needs_root and not is_root():
        _checked(run_as_root(["sh", "-c", _REMOVE, "sh", str(path)], _SUDO_LIMIT_S), path)
        return
    with mapped_os_errors(path):
        path.unlink(missing_ok=True)
        part_path(path).unlink(missing_ok=True)


def remove_part(path: Path, *, needs_root: bool = False) -> None:
    """Removes what a crash has left next to a file."""
    part = part_path(path)
    if part.exists():
        remove(part, needs_root=needs_root)


def _write_synced(part: Path, content: bytes, *, is_private: bool) -> None:
    # Of a file that others may not read, no one else may read the half that is written.
    mode = 0o600 if is_private else 0o666
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    with open(os.open(part, flags, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _take_after(path: Path, part: Path) -> None:
    """Gives the new file the permissions, owner and attributes of the old one, if there is one."""
    if not path.exists():
        return
    old, new = path.stat(), part.stat()
    if sys.platform != "win32" and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(part, old.st_uid, old.st_gid)
    shutil.copystat(path, part)
    os.utime(part)
    new = part.stat()
    if stat.S_IMODE(old.st_mode) != stat.S_IMODE(new.st_mode):
        raise PermissionError(errno.EPERM, "the file's permissions cannot be kept")


def _put_by_sudo(path: Path, content: bytes, *, is_executable: bool) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="flatout-") as staged:
        staged.write(content)
        staged.flush()
        mode = "x" if is_executable else ""
        _checked(
            run_as_root(["sh", "-c", PUT, "sh", staged.name, str(path), mode], _SUDO_LIMIT_S), path
        )


def _checked(done: command.Completed, path: Path) -> None:
    if done.exit_code != 0:
        raise RunFailed(
            "step-failed",
            f"{path} could not be written as root.",
            because=done.reason or done.stderr.strip()[-300:] or f"exit code {done.exit_code}",
            fix="check that `sudo true` works, then try again",
        )
