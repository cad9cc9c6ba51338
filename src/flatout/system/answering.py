"""The process that predicts or evaluates, asked from outside: its answers, and its end."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from flatout.errors import RunFailed
from flatout.nouns.finding import finding_from
from flatout.nouns.question import (
    OUTPUT_ENDINGS,
    ROWS_IN_FOLDER,
    AnyAnswer,
    Broken,
    Question,
)  # fmt: skip
from flatout.system.child import Worker, creation_flags, ending_text
from flatout.system.store import part_path
from flatout.system.variables import worker_environment

# Windows does not let Ctrl-C end a wait that has no limit.
_POLL_S = 0.1
# Lines that may wait to be read: the process does not run far ahead of a slow terminal.
_MOST_WAITING = 10_000
# What is kept of what the process printed: the end of it.
_PRINTED_BYTES = 200_000
_EXIT_LIMIT_S = 30.0


def ask(python: str, question: Question) -> Iterator[AnyAnswer]:
    """Asks the engine, in a process of its own, and gives its answers as they come.

    The last one is `Broken` if it failed, with what the process has printed. The process ends when
    nobody reads on.
    """
    with tempfile.TemporaryFile() as printed:
        # -P: a file `queue.py` in the current folder must not be taken for Python's own.
        process = subprocess.Popen(
            [python, "-P", "-X", "faulthandler", "-m", "flatout.engine.answer"],
            env=worker_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            start_new_session=True,
            creationflags=creation_flags(),
        )
        is_told = False
        try:
            for answer in _answers(process, question):
                if isinstance(answer, Broken):
                    is_told = True
                    answer = msgspec.structs.replace(answer, printed=_end_of(printed))
                yield answer
            # Its output has ended; it is about to, too.
            code = process.wait(_EXIT_LIMIT_S)
            if code != 0 and not is_told:
                yield _died(code, _end_of(printed))
        finally:
            _end(process)
            if process.returncode != 0 and question.output is not None:
                # It had no time to tidy up.
                with contextlib.suppress(OSError):
                    part_path(_rows_file(question.output)).unlink(missing_ok=True)


def _rows_file(output: str) -> Path:
    """The file that grows by rows: what was asked for, or one in the folder that was."""
    path = Path(output).expanduser()
    return path if path.suffix in OUTPUT_ENDINGS else path / ROWS_IN_FOLDER


def _answers(process: subprocess.Popen[bytes], question: Question) -> Iterator[AnyAnswer]:
    """The lines of a process that was just started, until its standard output ends."""
    assert process.stdin is not None
    lines: queue.Queue[bytes] = queue.Queue(_MOST_WAITING)
    reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
    decoder = msgspec.json.Decoder(AnyAnswer)
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
            _end(process)
        # The reader may be waiting for room.
        while reader.is_alive():
            with contextlib.suppress(queue.Empty):
                lines.get(timeout=_POLL_S)


def _read_lines(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(b"")


def _next(lines: queue.Queue[bytes]) -> bytes:
    while True:
        with contextlib.suppress(queue.Empty):
            return lines.get(timeout=_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, if it has not ended, with what it has started."""
    if process.poll() is None:
        Worker(process).kill()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _end_of(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _PRINTED_BYTES))
    return printed.read().decode(errors="replace")


def _died(code: int, printed: str) -> Broken:
    because = f"it {ending_text(code)}"
    if code == -9:
        because += "; if nobody killed it, the kernel did, because memory ran out"
    died = RunFailed(
        "prediction-died",
        "the process that computes broke off without saying why.",
        because=because,
        fix="compute fewer samples at once (--batch-size N), or look into what it printed",
    )
    return Broken(finding=finding_from(died), exit_code=1, printed=printed)
