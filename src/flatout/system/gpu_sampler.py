"""What the GPUs do now: by NVML in a child that may hang or crash, else by nvidia-smi."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import msgspec

from flatout.schema.machine import NO_NVML
from flatout.schema.machine_sample import GpuSample, Source
from flatout.system.clock import elapsed_s
from flatout.system.host_system import System
from flatout.system.probes import gpus as gpu_probe
from flatout.system.process_env import creation_flags
from flatout.system.smi_samples import FIELDS, query_smi
from flatout.system.worker_process import ending_text

# A child that has printed nothing for so long, or for three intervals, hangs.
_HANGS_S = 5.0
# Where no program uses the GPUs, the driver starts them first.
_STARTS_S = 15.0
# How long the last reading still stands for the present one.
_KEPT_S = 15.0
# Pauses before a new child: doubled with each failure; where NVML itself says why, long.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _REFUSED_PAUSE_S = 1.0, 60.0, 60.0
# A child that lived so long was healthy.
_HEALTHY_S = 60.0
# nvidia-smi takes up to a second of CPU time.
_SMI_EVERY_S = 5.0
# So many intervals, its last reading stands for the present one.
_SMI_KEPT = 3


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs at one moment; reason: why there are none, or why what is shown of them is old."""

    gpus: tuple[GpuSample, ...] = ()
    source: Source = "none"
    reason: str | None = None


class _Line(msgspec.Struct, frozen=True):
    """What the child prints."""

    gpus: tuple[GpuSample, ...] = ()
    error: str | None = None


class GpuSampler:
    """The present state of the GPUs; asking never waits for them.

    Args:
        system: where NVML and nvidia-smi are looked for.
        every_s: how often they are read.
    """

    def __init__(self, system: System, every_s: float) -> None:
        self._every_s = every_s
        self._child: _Child | None = None
        # One that was killed, but is stuck in the driver.
        self._stuck: _Child | None = None
        self._has_nvml = gpu_probe.has_library(system)
        program = gpu_probe.smi_program(system)
        self._smi = _SmiReader(system, program, every_s) if program else None
        self._absence = None
        if not self._has_nvml and self._smi is None:
            self._absence = gpu_probe.absence(system)
        self._reason: str | None = None if self._has_nvml else f"{NO_NVML}library"
        self._num_failures = 0
        self._next_start_s = elapsed_s()
        self._last: tuple[GpuSample, ...] = ()
        self._last_s: float | None = None

    def take(self) -> GpuReading:
        """The newest reading."""
        if self._absence is not None:
            return GpuReading(reason=self._absence)
        now_s = elapsed_s()
        if self._has_nvml:
            self._tend_child(now_s)
        age_s = None if self._last_s is None else now_s - self._last_s
        if age_s is not None and age_s <= max(_KEPT_S, 4 * self._every_s):
            return GpuReading(gpus=self._last, source="nvml", reason=self._why_old(age_s))
        if self._smi is not None and (self._reason is not None or age_s is not None):
            return self._smi.take(now_s, self._reason or "NVML does not respond")
        return GpuReading(reason=self._reason or "NVML has not responded yet")

    @property
    def is_settled(self) -> bool:
        """Whether there is a reading, or a reason for none."""
        reading = self.take()
        is_waiting = self._smi is not None and self._smi.is_busy
        return bool(reading.gpus) or (self._child is None and not is_waiting)

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.end()
            if self._child.exit_code() is None:
                self._stuck = self._child
            self._child = None

    def _why_old(self, age_s: float) -> str | None:
        if age_s <= self._every_s + 2.0 and self._child is not None:
            return None
        return f"last read {age_s:.0f} s ago; {self._reason or 'NVML does not respond'}"

    def _tend_child(self, now_s: float) -> None:
        """Takes in what the child has printed; ends one that hangs, and starts the next."""
        child = self._child
        if child is None:
            if self._stuck is not None and self._stuck.exit_code() is not None:
                self._stuck = None
            # Another one would get stuck, too.
            if now_s >= self._next_start_s and self._stuck is None:
                self._start(now_s)
            return
        has_ended = child.exit_code() is not None
        line = child.newest()
        if line is not None and line.error is None:
            self._last, self._last_s, self._reason = line.gpus, child.line_s, None
            if now_s - child.start_s > _HEALTHY_S:
                self._num_failures = 0
        if line is not None and line.error is not None:
            self._fail(line.error, now_s, least_s=_REFUSED_PAUSE_S)
        elif has_ended:
            self._fail(f"NVML: its process {ending_text(child.exit_code() or 0)}", now_s)
        elif now_s - child.line_s > self._limit_s(child):
            self._fail(f"NVML: no answer within {now_s - child.line_s:.0f} s", now_s)

    def _limit_s(self, child: _Child) -> float:
        if child.line_s == child.start_s:
            return _STARTS_S
        return max(_HANGS_S, 3 * self._every_s)

    def _start(self, now_s: float) -> None:
        try:
            self._child = _Child(self._every_s)
        except OSError as error:
            self._fail(f"NVML: its process could not be started: {error}", now_s)

    def _fail(self, reason: str, now_s: float, least_s: float = 0.0) -> None:
        self.close()
        self._reason = reason
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._num_failures)
        self._num_failures += 1
        self._next_start_s = now_s + max(pause_s, least_s)


class _Child:
    """A process that reads NVML. line_s: when it has last printed, or was started."""

    def __init__(self, every_s: float) -> None:
        module = "flatout.system.nvml_sampler"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, "--every", f"{every_s:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is for the one who watches.
            start_new_session=True,
            creationflags=creation_flags(),
        )
        self.start_s = self.line_s = elapsed_s()
        self._line: bytes | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._line, self.line_s = line, elapsed_s()

    def newest(self) -> _Line | None:
        """The newest line that was not taken yet."""
        line, self._line = self._line, None
        if line is None:
            return None
        try:
            return msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            return _Line(error=f"NVML: cannot read its answer {line[:80]!r} ({error})")

    def exit_code(self) -> int | None:
        """None while it runs; what it has printed was read then."""
        code = self._process.poll()
        if code is not None:
            self._thread.join(1.0)
        return code

    def end(self) -> None:
        """Kills it, without waiting: a process that hangs in the driver may never end."""
        assert self._process.stdin is not None
        self._process.kill()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)


class _SmiReader:
    """Runs nvidia-smi in a thread, at most one at a time, while someone asks."""

    def __init__(self, system: System, program: str, every_s: float) -> None:
        self._system = system
        self._program = program
        self._every_s = max(every_s, _SMI_EVERY_S)
        self._fields: tuple[str, ...] = FIELDS
        self._result: tuple[GpuSample, ...] | str = "nvidia-smi has not responded yet"
        self._read_s = 0.0
        self._thread: threading.Thread | None = None
        self._next_s = 0.0

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def take(self, now_s: float, why_not_nvml: str) -> GpuReading:
        if not self.is_busy and now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
        if isinstance(self._result, str):
            return GpuReading(reason=f"{why_not_nvml}; {self._result}")
        age_s = now_s - self._read_s
        if age_s > _SMI_KEPT * self._every_s:
            reason = f"nvidia-smi: last read {age_s:.0f} s ago"
            return GpuReading(reason=f"{why_not_nvml}; {reason}")
        return GpuReading(gpus=self._result, source="nvidia-smi", reason=why_not_nvml)

    def _read(self) -> None:
        if isinstance(self._result, str) and _runs_still(self._program):
            return
        began_s = elapsed_s()
        self._result, self._fields = query_smi(self._system, self._program, self._fields)
        self._read_s = began_s


def _runs_still(program: str) -> bool:
    """Whether one that was started before is still there: killed, but stuck in the driver."""
    import psutil

    # The kernel keeps 15 characters of it.
    name = os.path.basename(program)[:15]
    with contextlib.suppress(psutil.Error, OSError):
        return any(
            child.name()[:15] == name and child.status() != psutil.STATUS_ZOMBIE
            for child in psutil.Process().children()
        )
    return False
