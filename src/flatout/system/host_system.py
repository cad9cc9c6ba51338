"""The one object through which flatout examines the machine: local, or replayed from a recording.

What cannot be read or run is a value with its reason, never an exception: a probe continues
without.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from flatout.system import clock, command, python_packages

Completed = command.Completed

# A cold interpreter on a Windows drive seen from WSL takes seconds.
_PACKAGES_TIMEOUT_S = 10.0


class Unread(msgspec.Struct, frozen=True):
    """Something that could not be read, and why."""

    reason: str


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from calls rather than files; None if a file reports them better.

    num_threads: logical processors this process may run on (its affinity).
    release: kernel release or Windows build; display_version: Windows' "24H2".
    folder: the working folder, without links. glibc: version of the C library.
    """

    python_version: str
    num_threads: int
    num_cores: int | None = None
    cpu_name: str | None = None
    total_bytes: int | None = None
    available_bytes: int | None = None
    release: str | None = None
    display_version: str | None = None
    folder: str | None = None
    glibc: str | None = None


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The file system below a path. free_inodes is None where it counts none."""

    total_bytes: int
    free_bytes: int
    free_inodes: int | None = None
    is_read_only: bool | None = None


class System(Protocol):
    """A machine as probes see it. platform: sys.platform; python: the interpreter of flatout."""

    @property
    def platform(self) -> str: ...

    @property
    def python(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    def run(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """Runs a program to its end; a missing one or one that hangs is reported in `reason`."""
        ...

    def read(self, path: str) -> str | Unread:
        """A file as text; bytes that are not UTF-8 are replaced."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        ...

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted; none where it cannot be listed."""
        ...

    def space(self, path: str) -> Space | Unread:
        """The file system that holds a path."""
        ...

    def listening(self) -> tuple[int, ...] | Unread:
        """TCP ports on which someone waits; queried if no file shows them."""
        ...

    def calls(self) -> Calls:
        """Facts from calls of the operating system."""
        ...

    def packages(self, python: str, names: Sequence[str]) -> str | Unread:
        """The report of an interpreter on its packages, as JSON."""
        ...

    def now(self) -> str:
        """The time of day in UTC."""
        ...


class LocalSystem:
    """This machine."""

    platform = sys.platform
    python = sys.executable

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of this process."""
        return os.environ

    def run(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """Runs a program; with it die, when its time is up, all processes it started."""
        return command.run(argv, timeout_s)

    def read(self, path: str) -> str | Unread:
        """A file as text."""
        try:
            return Path(path).read_bytes().decode(errors="replace")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            return Unread(f"{path}: {reason or error}")

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder; one that may not be looked at is missing."""
        return os.path.exists(path)

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted."""
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError:
            return ()

    def space(self, path: str) -> Space | Unread:
        """The file system that holds a path."""
        try:
            if sys.platform == "win32":
                usage = shutil.disk_usage(path)
                return Space(total_bytes=usage.total, free_bytes=usage.free)
            stats = os.statvfs(path)
        except OSError as error:
            return Unread(f"{path}: {error.strerror or error}")
        return Space(
            total_bytes=stats.f_blocks * stats.f_frsize,
            free_bytes=stats.f_bavail * stats.f_frsize,
            free_inodes=stats.f_favail if stats.f_files else None,
            is_read_only=bool(stats.f_flag & os.ST_RDONLY),
        )

    def listening(self) -> tuple[int, ...] | Unread:
        """TCP ports on which someone waits, by the operating system's tables."""
        import psutil

        try:
            rows = psutil.net_connections(kind="tcp")
        except (psutil.Error, OSError) as error:
            return Unread(f"the operating system does not report it: {error}")
        ports = {row.laddr.port for row in rows if row.status == psutil.CONN_LISTEN and row.laddr}
        return tuple(sorted(ports))

    def calls(self) -> Calls:
        """Facts from calls of the operating system."""
        version = platform.python_version()
        if sys.platform == "linux":
            return Calls(
                python_version=version,
                num_threads=len(os.sched_getaffinity(0)),
                folder=_working_folder(),
                glibc=_glibc(),
            )
        return _calls_by_psutil(version)

    def packages(self, python: str, names: Sequence[str]) -> str | Unread:
        """Queries the interpreter; flatout's own is read in this process, without a child."""
        if python == self.python:
            return python_packages.report(names)
        # Not isolated (-I): what the user's own site and PYTHONPATH add, a training sees too.
        done = command.run([python, "-c", python_packages.source(), *names], _PACKAGES_TIMEOUT_S)
        if done.exit_code == 0:
            return done.stdout
        output = done.stderr.strip().splitlines() or [f"exit code {done.exit_code}"]
        return Unread(f"{python}: {done.reason or output[-1]}")

    def now(self) -> str:
        """The time of day in UTC."""
        return clock.now_text()


class SystemRecording(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as data: what each command and file gave. Commands are keyed by their argv.

    files: a null content is a file that exists and cannot be read.
    packages: what `interpreter` reports, by interpreter. spaces: file systems, by path.
    A recorded command stands for a longer one that begins with it, too.
    """

    platform: str
    calls: Calls
    python: str = "/venv/bin/python"
    environment: dict[str, str] = {}
    files: dict[str, str | None] = {}
    commands: tuple[tuple[tuple[str, ...], Completed], ...] = ()
    packages: dict[str, Any] = {}
    spaces: dict[str, Space] = {}
    ports: tuple[int, ...] = ()
    read_at: str = "2026-11-21T03:36:28Z"


class RecordedSystem:
    """A machine replayed from a recording; what was not recorded is missing.

    Args:
        recording: what the machine gave.
    """

    def __init__(self, recording: SystemRecording) -> None:
        self._recording = recording
        self._commands = dict(recording.commands)
        self.platform = recording.platform
        self.python = recording.python
        self.environment: Mapping[str, str] = recording.environment

    def run(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """The recorded output of the command."""
        for length in range(len(argv), 0, -1):
            done = self._commands.get(tuple(argv[:length]))
            if done is not None:
                return done
        return Completed(reason="No such file or directory")

    def read(self, path: str) -> str | Unread:
        """The recorded content of the file."""
        text = self._recording.files.get(path)
        if text is not None:
            return text
        is_there = path in self._recording.files
        return Unread(f"{path}: {'Permission denied' if is_there else 'No such file or directory'}")

    def exists(self, path: str) -> bool:
        """Whether the file was there, or one below it."""
        return any(name == path or name.startswith(f"{path}/") for name in self._recording.files)

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Names of the recorded files and folders in a folder."""
        below = (
            name.removeprefix(f"{path}/")
            for name in self._recording.files
            if name.startswith(f"{path}/")
        )
        return tuple(sorted({name.partition("/")[0] for name in below}))

    def space(self, path: str) -> Space | Unread:
        """The file system that held the path."""
        return self._recording.spaces.get(path) or Unread(f"{path}: No such file or directory")

    def listening(self) -> tuple[int, ...] | Unread:
        """The ports that were busy."""
        return self._recording.ports

    def calls(self) -> Calls:
        """The recorded results of the calls."""
        return self._recording.calls

    def packages(self, python: str, names: Sequence[str]) -> str | Unread:
        """The recorded packages of the interpreter."""
        recorded = self._recording.packages.get(python)
        if recorded is None:
            return Unread(f"{python}: No such file or directory")
        return msgspec.json.encode(recorded).decode()

    def now(self) -> str:
        """The time of the recording."""
        return self._recording.read_at


def _glibc() -> str | None:
    """ "2.39"; None where the C library is another one, musl perhaps."""
    if sys.platform == "win32":
        return None
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None
    return version.rpartition(" ")[2] if version else None


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # Someone has removed it.
        return None


def _calls_by_psutil(python_version: str) -> Calls:
    # psutil costs 15 ms to import and Linux has files for all of it.
    import psutil

    memory = psutil.virtual_memory()
    num_threads = os.cpu_count() or 1
    release, name, display_version = platform.release(), platform.processor() or None, None
    if sys.platform == "win32":
        num_threads = len(psutil.Process().cpu_affinity())
        # platform.version() queries WMI from Python 3.13 on, which takes seconds.
        version = sys.getwindowsversion()
        release = f"{version.major}.{version.minor}.{version.build}"
        name = (
            _registry_value(
                r"HARDWARE\DESCRIPTION\System\CentralProcessor\0", "ProcessorNameString"
            )
            or name
        )
        display_version = _registry_value(
            r"SOFTWARE\Microsoft\Windows NT\CurrentVersion", "DisplayVersion"
        )
    return Calls(
        python_version=python_version,
        num_threads=num_threads,
        num_cores=psutil.cpu_count(logical=False),
        cpu_name=name,
        total_bytes=memory.total,
        available_bytes=memory.available,
        release=release,
        display_version=display_version,
        folder=_working_folder(),
    )


def _registry_value(key: str, name: str) -> str | None:
    if sys.platform != "win32":
        return None
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as handle:
            return str(winreg.QueryValueEx(handle, name)[0]).strip()
    except OSError:
        return None
