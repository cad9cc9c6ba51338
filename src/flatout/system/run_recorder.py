"""The process that records what the machine does while a run trains: started and ended by the
worker, which it never disturbs.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from flatout.schema.finding import Finding
from flatout.system.process_env import creation_flags

# A run that is over by then has no samples, and does not pay for the process.
_STARTS_AFTER_S = 5.0
# More findings than anyone reads, if the training takes none for hours.
_MOST_WAITING = 100
_ENDS_WITHIN_S = 0.5


class RunRecorder:
    """Records samples into a run's folder while the context is open, from a few seconds on.

    Whatever goes wrong with it, the run continues without.

    folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._findings: queue.Queue[Finding] = queue.Queue(_MOST_WAITING)
        self._is_over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._record, daemon=True)

    def __enter__(self) -> RunRecorder:
        # Without another thread, there are no samples.
        with contextlib.suppress(RuntimeError):
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        # The end of its stdin ends it, unless a process that was forked here still holds it open.
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            # One that is stuck in the driver ends later.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_WITHIN_S)

    def findings(self) -> list[Finding]:
        """What it has found since the last call; never waits."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._findings.get_nowait())
        return found

    def _record(self) -> None:
        if self._is_over.wait(_STARTS_AFTER_S):
            return
        # Without a process there are no samples, and nothing else is lost.
        with contextlib.suppress(OSError, RuntimeError):
            self._read(self._start())

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flatout.monitor.recorder", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C asks the worker to stop; the recorder ends with it.
            start_new_session=True,
            creationflags=creation_flags(),
        )
        self._process = process
        if self._is_over.is_set():
            process.kill()
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError, queue.Full):
                    self._findings.put_nowait(msgspec.json.decode(line, type=Finding))
