"""The folders whose disks are measured, and the rows of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.bench.effort import Effort
from flatout.schema.bench import BenchRow, Unit
from flatout.system.command import Completed, run
from flatout.system.disk_speed import SMALL_BYTES
from flatout.system.paths import data_folders
from flatout.system.wsl import is_wsl

_TIMEOUT_S = 60.0
_QUANTITIES: tuple[tuple[str, str, Unit], ...] = (
    ("write", "write", "B/s"),
    ("read", "read", "B/s"),
    ("small_write", "small files write", "file/s"),
    ("small_read", "small files read", "file/s"),
)
_NOT_DROPPED = "this system does not let a program drop a file from its cache"


class MeasuredFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder to measure; unread: why it is not measured."""

    name: str
    path: Path
    unread: str | None = None


def measured_folders() -> list[MeasuredFolder]:
    """The data folder, the home folder and, under WSL, each Windows drive: every disk once."""
    places = [("data", _existing(data_folders()[-1])), ("home", Path.home())]
    if is_wsl():
        places += [(f"mnt-{path.name}", _writable(path)) for path in _windows_drives(Path("/mnt"))]
    return list(_each_once(places))


def _each_once(places: Sequence[tuple[str, Path]]) -> Iterator[MeasuredFolder]:
    seen: dict[int, str] = {}
    for name, path in places:
        try:
            device = path.stat().st_dev
        except OSError as error:
            yield MeasuredFolder(name=name, path=path, unread=error.strerror or str(error))
            continue
        other = seen.setdefault(device, name)
        unread = None if other == name else f"on the disk of the {other} folder"
        yield MeasuredFolder(name=name, path=path, unread=unread)


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(one for one in (path, *path.parents) if one.is_dir() or one == one.parent)


def _windows_drives(mnt: Path) -> list[Path]:
    try:
        return sorted(one for one in mnt.iterdir() if len(one.name) == 1 and one.name.isalpha())
    except OSError:
        return []


def _writable(drive: Path) -> Path:
    """A folder of a Windows drive in which every user may write, if there is one."""
    public = drive / "Users" / "Public"
    return public if public.is_dir() else drive


def disk_rows(folder: MeasuredFolder, effort: Effort) -> list[BenchRow]:
    """Measures one folder, in a child process."""
    if folder.unread is not None:
        return rows_from(folder, Completed(reason=folder.unread))
    amounts = (effort.stream_bytes, effort.num_small_files, effort.num_disk)
    program = [sys.executable, "-P", "-m", "flatout.system.disk_speed", str(folder.path)]
    return rows_from(folder, run([*program, *map(str, amounts)], _TIMEOUT_S))


def rows_from(folder: MeasuredFolder, done: Completed) -> list[BenchRow]:
    """The rows from what the child printed, or with the reason why it did not."""
    samples: Mapping[str, tuple[float, ...]] = {}
    # Of the reads, if they were left out.
    unread = done.stderr.strip()[-200:] or None
    if done.exit_code == 0:
        try:
            samples = msgspec.json.decode(done.stdout, type=dict[str, tuple[float, ...]])
        except msgspec.DecodeError:
            unread = f"cannot read the answer {done.stdout[:80]!r}"
    else:
        unread = done.reason or done.stderr.strip()[-200:] or f"exit code {done.exit_code}"
    return [
        BenchRow(
            id=f"limits/disk/{folder.name}/{key.replace('_', '-')}",
            label=f"disk {folder.name}, {label}",
            unit=unit,
            samples=samples.get(key, ()),
            conditions={"file_bytes": str(SMALL_BYTES)} if "small" in key else {},
            unread=None if samples.get(key) else unread or _NOT_DROPPED,
        )
        for key, label, unit in _QUANTITIES
    ]
