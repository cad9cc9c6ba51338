"""Ends a process so that its code carries the outcome, whatever its last moments bring."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def end(code: int) -> NoReturn:
    """Ends this process with that exit code, once its threads and `atexit` functions are done.

    Python would then take the interpreter apart. With torch that is a quarter of a second for
    nothing, and a thread that is in C++ just then aborts the process (SIGABRT, "terminate called
    without an active exception"). Python itself also ends with 120 if the last lines find no room
    on a disk that is full. Whoever started the process would take either for a crash, and start
    it again.
    """
    # What `Py_FinalizeEx` does first; `multiprocessing` and `subprocess` children do the same.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)
