"""A child process that replies to requests: a JSON message per line on its stdin and stdout.

`JsonProcess` is the parent's end, `JsonStdio` the child's.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, NoReturn

import msgspec

from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.clock import elapsed_s
from flatout.system.kill_tree import kill_tree
from flatout.system.process_env import creation_flags, worker_environment

# Windows does not let Ctrl-C interrupt a wait without a timeout.
_POLL_S = 0.1
# Lines waiting to be read: the process must not run far ahead of a slow terminal.
_MOST_WAITING = 10_000
# How much of the child's stderr is kept: the end of it.
_PRINTED_BYTES = 200_000
_EXIT_LIMIT_S = 30.0


class ProcessEnded(Exception):
    """The child ended, or printed something else, where a reply was expected."""

    def __init__(self, exit_code: int, line: bytes = b"") -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code
        self.line = line


class JsonProcess:
    """A child process, killed with all it has started when the context ends.

    Args:
        python: the interpreter; several words if something leads to it, as `docker exec` does.
        module: run with `-m`. Its stdin stays open; the end of it means that the parent is gone.
        arguments: of the module.
        environment: None: that of a worker, or of this process unless is_separate.
        is_separate: in a session of its own, so that Ctrl-C does not reach it, with its stderr kept
            for `printed`. False: in this session, and it prints where this process prints.

    Raises:
        OSError: no process could be started.
    """

    def __init__(
        self,
        python: str | Sequence[str],
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        is_separate: bool = True,
    ) -> None:
        self._printed: IO[bytes] | None = tempfile.TemporaryFile() if is_separate else None
        if environment is None and is_separate:
            environment = worker_environment()
        words = [python] if isinstance(python, str) else python
        try:
            # -P: a file `queue.py` in the current folder must not be taken for Python's own.
            self._process = subprocess.Popen(
                [*words, "-P", "-X", "faulthandler", "-m", module, *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                start_new_session=is_separate,
                creationflags=creation_flags() if is_separate else 0,
            )
        except OSError:
            if self._printed is not None:
                self._printed.close()
            raise
        assert self._process.stdout is not None
        self._lines = _LineReader(self._process.stdout)

    def __enter__(self) -> JsonProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._lines.drain()
        if self._printed is not None:
            self._printed.close()

    def send(self, message: Any) -> None:
        """Sends one message; a child that has died is noticed when its reply is read."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def receive(
        self,
        kind: Any,
        *,
        until_s: float = math.inf,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Waits for the next reply.

        Args:
            kind: its type.
            until_s: how long to wait, by `elapsed_s`.
            should_stop: called about ten times a second.

        Raises:
            ProcessEnded: instead of a reply.
            TimeoutError: no reply by then.
            KeyboardInterrupt: `should_stop` returned True.
        """
        line = self._lines.next(until_s, should_stop)
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            raise ProcessEnded(self.exit_code(), line) from error

    def ask(self, request: msgspec.Struct, kind: Any) -> Iterator[Any]:
        """Sends a request, and gives all replies until the child closes its stdout.

        `ProcessFailed`, which says why it failed, is given what the child has printed.

        Raises:
            ProcessEnded: it failed without saying why.
        """
        decoder = msgspec.json.Decoder(kind)
        self.send(request)
        is_at_end = is_explained = False
        try:
            while line := self._lines.next():
                reply = decoder.decode(line)
                if isinstance(reply, ProcessFailed):
                    is_explained = True
                    reply = msgspec.structs.replace(reply, printed=self.printed())
                yield reply
            is_at_end = True
        finally:
            if not is_at_end:
                self.end()
        code = self.exit_code()
        if code != 0 and not is_explained:
            raise ProcessEnded(code)

    def exit_code(self) -> int:
        """The exit code: negative for a signal. A child that should end and does not is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_LIMIT_S)
        self.end()
        return self._process.wait()

    @property
    def has_failed(self) -> bool:
        """Whether it is still running or ended with another code than 0."""
        return self._process.poll() != 0

    def printed(self) -> str:
        """The end of what it has printed to its stderr; empty unless `is_separate`."""
        if self._printed is None:
            return ""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _PRINTED_BYTES))
        return self._printed.read().decode(errors="replace")

    def close(self, limit_s: float) -> None:
        """Closes its stdin, and kills it unless it ends by itself in time."""
        self._close_stdin()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        self.end()

    def end(self) -> None:
        """Kills the process, if it still runs, with all it has started."""
        if self._process.poll() is None:
            kill_tree(self._process.pid)
            self._process.wait()
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


class _LineReader:
    """Reads lines in a thread of its own, so that waiting for one can be limited and stopped."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next(
        self, until_s: float = math.inf, should_stop: Callable[[], bool] = lambda: False
    ) -> bytes:
        """The next line; empty at the end. See `JsonProcess.receive`."""
        while not should_stop():
            left_s = until_s - elapsed_s()
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=max(0.0, min(_POLL_S, left_s)))
            if left_s <= 0:
                raise TimeoutError
        raise KeyboardInterrupt

    def drain(self) -> None:
        """Waits for the end; the thread may be waiting for room."""
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._lines.get(timeout=_POLL_S)

    def _read(self) -> None:
        with self._stream:
            for line in self._stream:
                self._lines.put(line)
        self._lines.put(b"")


class JsonLines:
    """Writes messages to a stream, one per line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._encoder = msgspec.json.Encoder()

    def write(self, message: msgspec.Struct, *, is_flushed: bool = True) -> None:
        """Writes a message; without is_flushed, it is sent together with the next one."""
        self._stream.write(self._encoder.encode(message) + b"\n")
        if is_flushed:
            self.flush()

    def flush(self) -> None:
        """Sends what was written."""
        self._stream.flush()


class JsonStdio:
    """The child's end. From then on, whatever else it prints to stdout goes to stderr.

    Its own children find an empty stdin: they must not read requests.

    answers: to the parent.
    """

    def __init__(self) -> None:
        self._requests, answers = protected_stdio()
        self.answers = JsonLines(answers)

    def read(self, kind: Any) -> Any:
        """Waits for the next request.

        Raises:
            msgspec.DecodeError: it is not of that type, or the parent is gone.
        """
        return msgspec.json.decode(self._requests.readline(), type=kind)

    def requests(self, kind: Any) -> Iterator[Any]:
        """All further requests, until the parent closes the pipe."""
        for line in self._requests:
            yield msgspec.json.decode(line, type=kind)

    def exit_when_closed(self) -> None:
        """Ends this process, with all it has started, once the parent is gone.

        Nothing more can be read afterwards.
        """
        threading.Thread(target=self._exit_when_closed, daemon=True).start()

    def _exit_when_closed(self) -> None:
        while os.read(self._requests.fileno(), 1024):
            pass
        exit_with_children()


def protected_stdio() -> tuple[BinaryIO, BinaryIO]:
    """This process's stdin and stdout for messages alone.

    From then on, whatever else it prints to stdout goes to stderr, and stdin is empty.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return requests, answers


def exit_with_children() -> NoReturn:
    """Ends this process at once, with all it has started."""
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    # Only here: it takes 20 ms to import.
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            kill_tree(child.pid)
    os._exit(1)
