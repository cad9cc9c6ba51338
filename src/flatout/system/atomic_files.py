"""Files that survive a crash: whole or not at all, on ext4, NTFS and 9p alike.

A file is written next to its place, synced, and renamed onto it. A JSONL file is only appended to;
its last line may be torn and is then not there. A lock says that someone is at work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError

T = TypeVar("T")

# What remains where a run's file cannot be restored; `run_reader` says which run.
REMOVE_RUN = "remove the run with `flatout runs rm`"

# Virus scanners and indexers on Windows hold a new file open for a moment: renames are tried again.
_RENAME_TRIES = 20
_RENAME_PAUSE_S = 0.05

# Someone who asks whether a lock is taken holds it for a moment: a refusal is tried again.
_LOCK_TRIES = 4
_LOCK_PAUSE_S = 0.02

# Begins the name of a folder that is being created or removed; the process's number follows.
_HIDDEN = ".flatout-"

# What a file system may still call free when it takes no more.
_LEAST_ROOM_BYTES = 64 * 1024


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; when this returns it is on the disk."""
    part = part_path(path)
    with mapped_os_errors(path):
        try:
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            move_into_place(part, path)
        except OSError:
            # On a full disk the half of a file takes the room that others need.
            part.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """Writes a value of msgspec's kinds as indented JSON, atomically."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path, kind: type[T]) -> T:
    """Reads a JSON file as a value of that kind; a damaged one is named."""
    with mapped_os_errors(path), open_file(path) as file:
        content = file.read()
    try:
        return msgspec.json.decode(content, type=kind)
    # msgspec leaves a text that is not UTF-8 to Python's own error.
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunFailed(
            "damaged-file",
            f"{path} is damaged or from another version.",
            because=str(error),
            fix=f"restore it from a copy, or {REMOVE_RUN}",
        ) from error


def open_file(path: Path) -> BinaryIO:
    """Opens a file to read it; refuses a pipe or a device, on which reading may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise RunFailed(
            "damaged-file",
            f"{path} is not a regular file.",
            because="it is a folder, a pipe or a device",
            fix=f"restore it from a copy, or {REMOVE_RUN}",
        )
    return open(path, "rb")


def part_path(path: Path) -> Path:
    """The path of an unfinished file; left-overs of a crash are known by the ending."""
    return path.with_name(f"{path.name}.part")


def hidden_path(path: Path) -> Path:
    """A name in the same folder for a folder that is being created or removed.

    `left_over_paths` knows it again if this process dies.
    """
    hidden = path.with_name(f"{_HIDDEN}{os.getpid()}-{path.name}")
    if hidden.exists():
        shutil.rmtree(hidden)
    return hidden


def left_over_paths(parent: Path) -> list[Path]:
    """The hidden folders in this one whose process has ended."""
    import psutil

    # Behind a link to a disk that does not answer there is nothing to be removed.
    try:
        hidden = list(parent.glob(f"{_HIDDEN}*-*"))
    except OSError:
        return []
    left_over = []
    for path in hidden:
        number = path.name.removeprefix(_HIDDEN).partition("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            left_over.append(path)
    return left_over


def move_into_place(part: Path, path: Path) -> None:
    """Renames a written and synced file to its final name, and syncs the folder."""
    for attempt in range(_RENAME_TRIES):
        try:
            os.replace(part, path)
            break
        except PermissionError:
            if sys.platform != "win32" or attempt == _RENAME_TRIES - 1:
                raise
            time.sleep(_RENAME_PAUSE_S)
    sync_folder(path.parent)


def copy_atomically(source: Path, path: Path) -> None:
    """Copies a file, whole or not at all; when this returns the copy is on the disk."""
    part = part_path(path)
    with mapped_os_errors(path):
        shutil.copyfile(source, part)
        sync_file(part)
        move_into_place(part, path)


def sync_file(path: Path) -> None:
    """Puts on the disk what anyone has written to a file."""
    with mapped_os_errors(path), open(path, "r+b") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder durable, where the operating system lets folders be synced."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        # 9p and some network file systems refuse to sync a folder; the rename stands all the same.
        pass
    finally:
        os.close(descriptor)


class Lines:
    """A JSONL file that is only appended to.

    Args:
        path: the file; made if missing. A torn last line, left by a crash, is cut off first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        with mapped_os_errors(path):
            _cut_torn_line(path)
            self._file = open(path, "ab", buffering=0)

    def append(self, line: Any, *, is_synced: bool = False) -> None:
        """Adds a line in one write; with is_synced it is on the disk when this returns."""
        content = self._encoder.encode(line) + b"\n"
        with mapped_os_errors(self._path):
            num_written = 0
            try:
                while num_written < len(content):
                    num_written += self._file.write(content[num_written:])
            except OSError:
                # A full disk may take part of a line; the next one must not be glued to it.
                if num_written:
                    self._file.truncate(os.fstat(self._file.fileno()).st_size - num_written)
                raise
            if is_synced:
                os.fsync(self._file.fileno())

    def size_bytes(self) -> int:
        """The present size of the file."""
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Syncs and closes the file."""
        if not self._file.closed:
            with mapped_os_errors(self._path):
                os.fsync(self._file.fileno())
                self._file.close()


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with open(path, "r+b") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            file.truncate(end)


def read_lines(path: Path, kind: Any) -> list[Any]:
    """All whole lines of a JSONL file, oldest first; a torn last line is missing."""
    lines, _ = read_lines_from(path, 0, kind)
    return lines


def read_lines_from(path: Path, offset: int, kind: Any) -> tuple[list[Any], int]:
    """The whole lines from a byte offset on, and the offset behind the last of them.

    A file in which the offset is no longer behind a line (it was cut back on resume, and may have
    grown again) is read from its beginning.
    """
    with mapped_os_errors(path):
        try:
            with open_file(path) as file:
                start = offset if _is_line_end(file, offset) else 0
                file.seek(start)
                content = file.read()
        except FileNotFoundError:
            return [], 0
    whole = content[: content.rfind(b"\n") + 1]
    decoder = msgspec.json.Decoder(kind)
    return [decode_line(decoder, line, path) for line in whole.splitlines()], start + len(whole)


def _is_line_end(file: BinaryIO, offset: int) -> bool:
    if offset == 0:
        return True
    file.seek(offset - 1)
    return file.read(1) == b"\n"


def decode_line(decoder: msgspec.json.Decoder[Any], line: bytes, path: Path) -> Any:
    """A line of a JSONL file as a value; a damaged one is named."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunFailed(
            "damaged-file",
            f"{path} has an invalid line.",
            because=f"{error}: {line[:80]!r}",
            fix="delete that line; the others are intact",
        ) from error


def cut_back(path: Path, size_bytes: int) -> None:
    """Cuts a file back to a size it once had; a shorter one (after a power cut) stays as it is."""
    if not path.exists():
        return
    with mapped_os_errors(path), open(path, "r+b") as file:
        if file.seek(0, os.SEEK_END) > size_bytes:
            file.truncate(size_bytes)
            os.fsync(file.fileno())


class FileLock:
    """Says that one process works in a folder; freed by the operating system when it dies.

    Args:
        path: the lock's file; it stays, only its lock matters.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def is_taken(self) -> bool:
        """Whether someone holds it now. Asking does not change the folder."""
        if not self.can_be_taken():
            return False
        with mapped_os_errors(self._path):
            try:
                # A pipe that has just come there would be waited for. Windows has neither.
                descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            except FileNotFoundError:
                return False
            try:
                return not _try_lock(descriptor, is_shared=True)
            finally:
                os.close(descriptor)

    def can_be_taken(self) -> bool:
        """False where something else than a file is in its place: a folder, a link to itself."""
        try:
            return stat.S_ISREG(os.stat(self._path).st_mode)
        except OSError as error:
            return error.errno not in (errno.ELOOP, errno.ENOTDIR)

    def acquire(self) -> bool:
        """Takes the lock without waiting; False if someone else holds it."""
        with mapped_os_errors(self._path):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                is_locked = _try_lock(descriptor, is_shared=False)
            except BaseException:
                os.close(descriptor)
                raise
        if not is_locked:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        if sys.platform != "win32":
            # A forked loader worker outlives a killed owner by seconds: it must not hold on to it.
            os.register_at_fork(after_in_child=self.release)
        return True

    def sign(self) -> None:
        """Writes this process's number into the file of the lock it holds, for `is_orphaned`."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())

    def is_orphaned(self) -> bool:
        """Whether what holds the lock is a program that its owner had started, not the owner.

        Only of an owner that has signed, and was killed.
        """
        import psutil

        try:
            text = self._path.read_text(encoding="ascii")
        except (OSError, ValueError):
            return False  # Windows does not let others read it; programs inherit no lock there.
        try:
            # A killed process that no one has waited for still has its number.
            return text.isdigit() and psutil.Process(int(text)).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    @property
    def descriptor(self) -> int | None:
        """The descriptor of a held lock's file: a process that inherits it holds the lock, too."""
        return self._descriptor

    def release(self) -> None:
        """Gives the lock back; closing its file does it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _try_lock(descriptor: int, *, is_shared: bool) -> bool:
    for attempt in range(_LOCK_TRIES):
        try:
            _lock_file(descriptor, is_shared)
            return True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                raise
        if attempt < _LOCK_TRIES - 1:
            time.sleep(_LOCK_PAUSE_S)
    return False


def _lock_file(descriptor: int, is_shared: bool) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        # Shared among those who only ask, so that none of them is taken for an owner.
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


@contextlib.contextmanager
def mapped_os_errors(path: Path) -> Iterator[None]:
    """Full disks, read-only folders and vanished files as bad news that a user can act on."""
    try:
        yield
    except FlatoutError:
        raise
    except OSError as error:
        raise _bad_news(error, path) from error


def no_room(path: Path) -> RunFailed | None:
    """The error for a disk that was too full for the process on it to report this itself."""
    with contextlib.suppress(OSError):
        usage = shutil.disk_usage(path)
        # Some file systems do not say how large they are.
        if usage.total and usage.free < _LEAST_ROOM_BYTES:
            return _disk_full(path, "the file has no room for another line")
    return None


def _disk_full(path: Path, because: str) -> RunFailed:
    return RunFailed(
        "disk-full",
        f"no space left to write {path}.",
        because=because,
        fix="free space (`flatout runs` lists what is kept), then resume the run",
    )


def _bad_news(error: OSError, path: Path) -> FlatoutError:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return _disk_full(path, reason)
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return UsageError(
            "folder-not-writable",
            f"no permission to read or write {path}.",
            because=reason,
            fix="make the folder writable, or choose another (runs: FLATOUT_STATE)",
        )
    return RunFailed(
        "file-not-accessible",
        f"cannot read or write {path}.",
        because=reason,
        fix="check that the folder exists and is mounted, then try again",
    )
