"""Ends a process so that its code carries the outcome, whatever its last moments bring."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def end(code: int) -> NoReturn:
    """Ends this process with that exit code, once its threads and `atexit` functions are done.

    Python's own end also tears the interpreter down, which takes time with torch, and aborts the
    process if a thread is in C++ at that moment (SIGABRT, "terminate called without an active
    exception"). It also replaces the code by 120 if the last lines do not fit on a full disk. The
    parent process would take either for a crash, and start it again.
    """
    # What `Py_FinalizeEx` does first, and a child of `multiprocessing` before its `os._exit`.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # None if the process was started without it.
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    os._exit(code)
