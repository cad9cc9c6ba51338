"""A program that `flatout watch` has run: what it was, how it ended, and its machine.

Base units; unknown is None, with its reason in `unread`.
"""

from __future__ import annotations

import msgspec

from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding
from flatout.schema.machine import Machine
from flatout.schema.machine_sample import MachineSample

WATCH_VERSION = 1


class WatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout watch` as data.

    out: the folder of the record; None: a new one among flatout's own.
    """

    program: tuple[str, ...]
    out: str | None = None
    is_json: bool = False


class ProcessTreeSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program with all it has started, at one moment.

    cpu_s: of all of them since the beginning, ended ones included as far as they were seen.
    rss_bytes: the sum; memory that several share counts in each.
    disk_read_bytes, disk_written_bytes: since the beginning; None where no one counts them.
    """

    num_processes: int
    cpu_s: float
    rss_bytes: int
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None


class WatchSample(MachineSample, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `samples.jsonl`: the machine, and the program. program: None once it has ended."""

    program: ProcessTreeSample | None = None


class WatchedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU while a program ran. utilization: mean; used_bytes: peak, by all programs."""

    index: int
    name: str | None = None
    utilization: float | None = None
    used_bytes: int | None = None
    memory_bytes: int | None = None


class TimeOutside(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a program went, as far as that shows from outside.

    cpus: that the program kept busy, on average. host_utilization: of all CPUs, by all programs.
    disk_wait: share of the time in which a program on this machine waited for a disk.
    rss_bytes: peak. unread: field -> why it is None.
    """

    took_s: float
    num_cpus: int | None = None
    cpu_s: float | None = None
    host_utilization: float | None = None
    gpus: tuple[WatchedGpu, ...] = ()
    disk_wait: float | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None
    rss_bytes: int | None = None
    memory_bytes: int | None = None
    unread: dict[str, str] = {}

    @property
    def cpus(self) -> float | None:
        """The CPUs that the program kept busy, on average."""
        return None if self.cpu_s is None or self.took_s <= 0 else self.cpu_s / self.took_s


class WatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a program: `watch.json` in its folder.

    folder: of the record; working_folder: of the program. python: the interpreter that runs it.
    versions: of packages that matter, by name. exit_code: below zero for a signal; None while it
    runs, and where flatout was killed first. output: the file with what it printed.
    alarms: about the machine, raised while it ran.
    causes: what `flatout explain` finds in its output, if it failed.
    unread: field -> why it is empty, or not complete.
    """

    version: int = WATCH_VERSION
    id: str
    folder: str
    program: tuple[str, ...]
    working_folder: str
    began_at: float
    exit_code: int | None = None
    time: TimeOutside | None = None
    machine: Machine | None = None
    python: str | None = None
    versions: dict[str, str] = {}
    output: str | None = None
    alarms: tuple[Alarm, ...] = ()
    causes: tuple[Finding, ...] = ()
    unread: dict[str, str] = {}


class WatchedProgramLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the list of records."""

    id: str
    folder: str
    program: tuple[str, ...]
    began_at: float
    is_running: bool
    exit_code: int | None = None
    took_s: float | None = None
