"""A process of flatout's own that is asked something and answers by lines of JSON."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

import msgspec

from flatout.system.child import Worker, creation_flags
from flatout.system.variables import worker_environment

# Windows does not let Ctrl-C end a wait that has no limit.
_POLL_S = 0.1
# Lines that may wait to be read: the process does not run far ahead of a slow terminal.
_MOST_WAITING = 10_000
# What is kept of what the process printed: the end of it.
_PRINTED_BYTES = 200_000
_EXIT_LIMIT_S = 30.0


class Conversation:
    """A process, started with the conversation and ended with it, whatever it is doing then.

    Args:
        python: the interpreter; several words where something leads to it, as `docker exec` does.
        module: what it runs; its standard input stays open, and its end means that nobody waits.
    """

    def __init__(self, python: str | Sequence[str], module: str) -> None:
        self._printed = tempfile.TemporaryFile()
        words = [python] if isinstance(python, str) else python
        # -P: a file `queue.py` in the current folder must not be taken for Python's own.
        self._process = subprocess.Popen(
            [*words, "-P", "-X", "faulthandler", "-m", module],
            env=worker_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            start_new_session=True,
            creationflags=creation_flags(),
        )

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._printed.close()

    def ask(self, question: msgspec.Struct, kind: Any) -> Iterator[Any]:
        """The lines of its standard output, as values of that kind, until it ends."""
        process = self._process
        assert process.stdin is not None
        lines: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
        reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
        decoder = msgspec.json.Decoder(kind)
        # A process that could not even begin has closed it.
        with contextlib.suppress(OSError):
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
        reader.start()
        is_at_end = False
        try:
            while line := _next(lines):
                yield decoder.decode(line)
            is_at_end = True
        finally:
            if not is_at_end:
                self.end()
            # The reader may be waiting for room.
            while reader.is_alive():
                with contextlib.suppress(queue.Empty):
                    lines.get(timeout=_POLL_S)

    def exit_code(self) -> int:
        """How it ended, once its output has: below zero for a signal."""
        return self._process.wait(_EXIT_LIMIT_S)

    @property
    def has_failed(self) -> bool:
        """Whether it has not ended in good order."""
        return self._process.poll() != 0

    def printed(self) -> str:
        """The end of what it has printed to its standard error."""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _PRINTED_BYTES))
        return self._printed.read().decode(errors="replace")

    def end(self) -> None:
        """Ends the process, if it has not ended, with what it has started."""
        if self._process.poll() is None:
            Worker(self._process).kill()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def _read_lines(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(b"")


def _next(lines: queue.Queue[bytes]) -> bytes:
    while True:
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=_POLL_S)
