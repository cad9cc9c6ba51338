"""The process that ingests: `python -m flatout.engine.ingest`.

Started by the command line. A request comes as a line of JSON on standard input, which then stays
open: its end means that nobody waits any more. What happens goes out as JSON lines.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from typing import BinaryIO

import msgspec

from flatout.engine.ingest.ingestion import ingest
from flatout.errors import FlatoutError
from flatout.nouns.finding import Finding, finding_from
from flatout.nouns.ingestion import IngestRequest
from flatout.nouns.question import Answer, Broken


class _Answers:
    """Lines to whoever asked."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def tell(self, line: Answer) -> None:
        self._stream.write(msgspec.json.encode(line) + b"\n")
        self._stream.flush()


def main() -> int:
    """Carries out one request; gives the exit code."""
    answers = _Answers(os.fdopen(os.dup(1), "wb"))
    # Whatever Ray or Dask print must not get between the lines.
    os.dup2(2, 1)
    request = msgspec.json.decode(sys.stdin.buffer.readline(), type=IngestRequest)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        for line in ingest(request):
            answers.tell(line)
    except FlatoutError as error:
        answers.tell(Broken(finding=finding_from(error), exit_code=error.exit_code))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        problem = f"flatout itself failed: {type(error).__name__}: {error}"
        finding = Finding(rule="internal-error", severity="error", problem=problem)
        answers.tell(Broken(finding=finding, exit_code=3))
        return 3
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    # The processes of a pool, of Ray and of Dask are of this one's group; Windows ends a pool's
    # when its pipe breaks.
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
