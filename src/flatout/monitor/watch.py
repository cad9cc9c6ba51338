"""Runs a program of the user's own and records what it and the machine do; changes neither."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flatout.errors import FlatoutError, UsageError
from flatout.monitor.time_outside import Totals, cpus_between, interval_s, program_stem
from flatout.schema.alarm import Alarm
from flatout.schema.machine import Machine
from flatout.schema.machine_sample import MachineSample
from flatout.schema.watched import WatchedProgramLine, WatchRecord, WatchRequest, WatchSample
from flatout.system import pass_signals, text_input, worker_process
from flatout.system.clock import elapsed_s, now_s
from flatout.system.disk_wait import disk_wait_s
from flatout.system.host_system import Unread
from flatout.system.store import watched_folder
from flatout.system.store.sample_file import SampleFile
from flatout.system.watched_program import WatchedProgram

if TYPE_CHECKING:
    from flatout.monitor.alarms import Alarms
    from flatout.system.machine_sampler import MachineSampler
    from flatout.system.process_tree import ProcessTree

# A line that is looked at is drawn as often.
_LIVE_S = 1.0
# What ends sooner is not sampled.
_SHORTEST_S = 0.2
# The GPUs are read by a process of its own.
_GPUS_EVERY_S = 2.0
# Alarms need samples that often, also where fewer are written.
_LONGEST_PAUSE_S = 10.0
# What comes and goes for days must not fill the record.
_MOST_ALARMS = 20
# Facts of the machine are read while the program runs; a short one is not held up by them.
_FACTS_S = 3.0
_LAST_OUTPUT_S = 1.0
# A wait that Ctrl-C may end.
_LEFT_BEHIND_S = 0.5
_EXPLAINED_BYTES = 256 * 1024


class WatchTick(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a program. cpus: that it has kept busy since the one before."""

    elapsed_s: float
    sample: WatchSample
    cpus: float | None = None


class LeftBehind(msgspec.Struct, frozen=True):
    """The program has ended; what it has started still holds its output."""

    exit_code: int


class _Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of the machine and the interpreter next to the program."""

    machine: Machine
    python: str | None = None
    versions: dict[str, str] = {}
    unread: dict[str, str] = {}


class _SampleLog:
    """The samples of a program, summed up and written. What fails costs a sample, not the program.

    raised: the alarms that they raise about the machine, the first ones.

    Args:
        path: their file, which is made with the first one.
        unread: of the record; what has failed is added.
    """

    def __init__(self, path: Path, unread: dict[str, str]) -> None:
        self.totals = Totals()
        self.raised: list[Alarm] = []
        self._alarms: Alarms | None = None
        self._path = path
        self._unread = unread
        self._file: SampleFile | None = None

    def taken(self, sampler: MachineSampler, tree: ProcessTree | None) -> WatchSample | None:
        """A sample, which is also summed up; None if it has failed."""
        try:
            sample = _with_program(sampler.take(), tree)
            self.totals.take(sample)
        except Exception as error:  # noqa: BLE001 - the next one may work
            self.fail(error)
            return None
        if "alarms" not in self._unread:
            try:
                self._look_for_alarms(sample)
            except Exception as error:  # noqa: BLE001 - samples go on without them
                self._unread["alarms"] = f"{type(error).__name__}: {error}"
        return sample

    def _look_for_alarms(self, sample: WatchSample) -> None:
        if self._alarms is None:
            # Only now, while the program starts.
            from flatout.monitor.alarms import Alarms

            self._alarms = Alarms(every_s=_LONGEST_PAUSE_S)
        alarms = self._alarms.take(sample, ())
        self.raised += [alarm for alarm in alarms if alarm.state == "raised"]
        if len(self.raised) > _MOST_ALARMS:
            del self.raised[_MOST_ALARMS:]
            self._unread["alarms"] = f"only the first {_MOST_ALARMS} are kept"

    def fail(self, error: Exception) -> None:
        """Notes why samples are missing."""
        self._unread["sampling"] = f"{type(error).__name__}: {error}"

    def append(self, sample: WatchSample) -> None:
        """Writes one, unless that has failed before."""
        if "samples" in self._unread:
            return
        try:
            if self._file is None:
                self._file = SampleFile(self._path)
            self._file.append(sample)
        except FlatoutError as error:
            # A full disk costs the record, not the program.
            self._unread["samples"] = error.because or error.problem

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with contextlib.suppress(FlatoutError):
                self._file.__exit__()


class Watch:
    """A running program. Use as a context manager.

    Raises:
        UsageError: no-program, program-not-found, program-not-started, folder-not-empty,
            folder-not-writable.
    """

    def __init__(self, request: WatchRequest) -> None:
        if not request.program or not request.program[0]:
            raise UsageError(
                "no-program",
                "there is no program to watch.",
                fix="flatout watch -- python train.py",
            )
        self._folder = watched_folder.create_record(program_stem(request.program), request.out)
        self._lock = self._folder.lock()
        self._lock.acquire()
        self._record = WatchRecord(
            id=self._folder.path.name,
            folder=str(self._folder.path),
            program=request.program,
            working_folder=os.getcwd(),
            began_at=now_s(),
        )
        self._disk_s = disk_wait_s()
        self._begin_s = elapsed_s()
        try:
            self._program = WatchedProgram(
                request.program, self._folder.output, is_stdout_free=request.is_json
            )
        except BaseException:
            self._lock.release()
            watched_folder.discard_record(self._folder, is_folder_kept=request.out is not None)
            raise
        self._unread: dict[str, str] = {}
        self._took_s = 0.0
        self._samples = _SampleLog(self._folder.samples, self._unread)
        self._facts = _begin_facts(request.program)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        # Whatever has failed here: without us, its signals and its output are gone.
        while not self._program.wait(_LIVE_S):
            pass
        self._program.close()
        self._samples.close()
        self._lock.release()

    def ticks(self) -> Iterator[WatchTick | LeftBehind]:
        """What it does, from moment to moment, until it has ended and its output is copied."""
        if self._program.wait(_SHORTEST_S):
            self._took_s = elapsed_s() - self._begin_s
            yield from self._last_output()
            return
        try:
            yield from self._sampled()
        except Exception as error:  # noqa: BLE001 - the program goes on
            self._samples.fail(error)
            while not self._program.wait(_LIVE_S):
                pass
            self._took_s = elapsed_s() - self._begin_s
        yield from self._last_output()

    def _sampled(self) -> Iterator[WatchTick]:
        # Only now, while the program starts: it takes a moment to import.
        from flatout.system.machine_sampler import MachineSampler
        from flatout.system.process_tree import ProcessTree

        self._write(self._record)
        tree = ProcessTree(self._program.pid)
        before: WatchSample | None = None
        written_s = 0.0
        folders = (self._record.working_folder, self._record.folder)
        with MachineSampler(every_s=_GPUS_EVERY_S, paths=folders) as sampler:
            while True:
                sample = self._samples.taken(sampler, tree)
                took_s = elapsed_s() - self._begin_s
                if sample is not None:
                    if before is None or took_s - written_s >= interval_s(took_s):
                        self._samples.append(sample)
                        written_s = took_s
                    cpus = None if before is None else cpus_between(before, sample)
                    yield WatchTick(elapsed_s=took_s, sample=sample, cpus=cpus)
                    before = sample
                pause_s = min(interval_s(took_s), _LONGEST_PAUSE_S)
                if self._program.has_line:
                    pause_s = min(pause_s, _LIVE_S)
                if self._program.wait(pause_s):
                    break
            self._took_s = elapsed_s() - self._begin_s
            last = self._samples.taken(sampler, None)
            if last is not None:
                self._samples.append(last)

    def _last_output(self) -> Iterator[LeftBehind]:
        self._program.close()
        end = self._program.end
        assert end is not None
        if not self._program.wait_for_output(_LAST_OUTPUT_S):
            yield LeftBehind(end.exit_code)
            try:
                while not self._program.wait_for_output(_LEFT_BEHIND_S):
                    pass
            except KeyboardInterrupt:
                self._unread["output"] = "what the program left behind was still printing"

    def show_line(self, text: str) -> None:
        """Shows a line below the program's output."""
        self._program.show_line(text)

    @property
    def has_line(self) -> bool:
        """Whether there is a line to show."""
        return self._program.has_line

    @property
    def exit_code(self) -> int:
        """Of the ended program; below zero for a signal."""
        assert self._program.end is not None
        return self._program.end.exit_code

    def finish(self) -> WatchRecord:
        """The record of the ended program, which is also written."""
        end = self._program.end
        assert end is not None
        self._unread |= {"output": self._program.unread} if self._program.unread else {}
        facts = self._facts()
        if facts is None:
            self._unread["machine"] = f"it was not read within {_FACTS_S:g} s"
        else:
            self._unread |= facts.unread
        waited, reasons = _disk_wait(self._disk_s, self._took_s)
        has_output = self._folder.output.exists() and self._folder.output.stat().st_size > 0
        record = msgspec.structs.replace(
            self._record,
            exit_code=end.exit_code,
            time=self._samples.totals.outside(
                self._took_s,
                cpu_s=end.cpu_s,
                rss_bytes=end.rss_bytes,
                disk_wait=waited,
                unread=reasons,
            ),
            machine=facts and facts.machine,
            python=facts and facts.python,
            versions=facts.versions if facts else {},
            output=str(self._folder.output) if has_output else None,
            alarms=tuple(self._samples.raised),
            unread=self._unread,
        )
        return self._write(record)

    def keep(self, record: WatchRecord) -> WatchRecord:
        """Writes the record again, with more in it."""
        return self._write(record)

    def _write(self, record: WatchRecord) -> WatchRecord:
        try:
            watched_folder.write_record(self._folder, record)
        except FlatoutError as error:
            reason = error.because or error.problem
            return msgspec.structs.replace(record, unread={**record.unread, "record": reason})
        return record


def _disk_wait(before: float | Unread, took_s: float) -> tuple[float | None, dict[str, str]]:
    """The share of a time in which a program waited for a disk, or why it is unknown."""
    now = disk_wait_s()
    if isinstance(before, Unread):
        return None, {"disk_wait": before.reason}
    if isinstance(now, Unread):
        return None, {"disk_wait": now.reason}
    return min(1.0, max(0.0, now - before) / max(took_s, 1e-9)), {}


def _with_program(sample: MachineSample, tree: ProcessTree | None) -> WatchSample:
    program = tree.take() if tree is not None else None
    return WatchSample(**msgspec.structs.asdict(sample), program=program)


def _begin_facts(program: Sequence[str]) -> Callable[[], _Facts | None]:
    from flatout.system.timeout_threads import begin

    return begin(lambda: _read_facts(program), _FACTS_S)


def _read_facts(program: Sequence[str]) -> _Facts:
    from flatout.system.host_system import LocalSystem
    from flatout.system.probes.machine import probe
    from flatout.system.program_python import installed_in, python_of

    machine = probe(LocalSystem())
    python = python_of(program)
    if isinstance(python, Unread):
        return _Facts(
            machine=msgspec.structs.replace(machine, python=None, frameworks=()),
            unread={"python": python.reason, "versions": python.reason},
        )
    installed = installed_in(python)
    if isinstance(installed, Unread):
        machine = msgspec.structs.replace(machine, python=python, frameworks=())
        return _Facts(machine=machine, python=python, unread={"versions": installed.reason})
    return _Facts(
        machine=msgspec.structs.replace(machine, python=python, frameworks=installed.frameworks),
        python=python,
        versions=installed.versions,
    )


def list_records() -> list[WatchedProgramLine]:
    """All programs that were watched, oldest first."""
    return list(watched_folder.list_records())


def read_record(text: str) -> WatchRecord:
    """A record by its name, `last` or its folder.

    Raises:
        UsageError: unknown-record; RunFailed: damaged-file.
    """
    return watched_folder.read_record(watched_folder.find_record(text))


def end_of_output(record: WatchRecord) -> bytes:
    """The end of what a program has printed, where the cause of its failure is."""
    return (
        b"" if record.output is None else text_input.end_of(Path(record.output), _EXPLAINED_BYTES)
    )


def ending_text(exit_code: int) -> str:
    """The end of a program in words."""
    return worker_process.ending_text(exit_code)


def end_like(exit_code: int) -> int:
    """Ends this process by the program's signal; else gives the exit code to end with."""
    return pass_signals.end_like(exit_code)
