"""Shared by all launchers: the command and variables of a rank, and the meaning of exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from flatout.engine.runlog.event_log import append_refusal
from flatout.errors import FlatoutError
from flatout.schema.worker_command import worker_command
from flatout.system.cpu_name import num_usable_cores
from flatout.system.store.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class NodeRendezvous:
    """Machines that train together, each with a launcher and ranks of its own.

    node: that of this launcher, from 0. count: how many there are. host, port: where the launcher
    of the first waits for the others.
    """

    node: int
    count: int
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """Ranks that are to train a run together.

    folder: of the run; the same path for every rank. num_ranks: how many this launcher starts.
    change: JSON, as the worker's `--change`. lifeline: the ranks' standard input. nodes: among
    which this is one; None where there are no others.
    """

    folder: Path
    num_ranks: int
    change: str
    lifeline: Lifeline
    nodes: NodeRendezvous | None = None

    def command(self, python: str = sys.executable) -> list[str]:
        """The command of every rank; the variables of `rank_variables` tell them apart."""
        return worker_command(
            python,
            "flatout.engine.training.worker",
            str(self.folder),
            "--ranked",
            "--attached",
            change=self.change,
        )


def rank_variables(
    rank: int, num_ranks: int, *, local_rank: int, num_local: int, rendezvous: tuple[str, int]
) -> dict[str, str]:
    """The variables by which a rank knows its place, named as torchrun names them.

    Args:
        rank, num_ranks: its number among all, from 0.
        local_rank, num_local: its number among those of its machine; also that of its GPU.
        rendezvous: host and port where rank 0 waits for the others.
    """
    host, port = rendezvous
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(num_local),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        **thread_variables(num_local),
    }


def thread_variables(num_local: int) -> dict[str, str]:
    """Threads for each of so many ranks on this machine, unless the user has set them."""
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, num_usable_cores() // num_local))}


def say(text: object) -> None:
    """Prints into the run's log; its disk may be what is full."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def log_refusal(job: RankJob, error: FlatoutError) -> int:
    """Logs in the run's history why no rank was started, unless another process writes there."""
    say(error)
    append_refusal(RunFolder(job.folder), error)
    return error.exit_code


class Lifeline:
    """A pipe that ends when this process does, or, if attached, when its own standard input does.

    Its reading end is the standard input of every rank: whatever happens to who has started them,
    they stop with a checkpoint. SIGTERM and Ctrl-C end it, too.
    """

    def __init__(self, *, is_attached: bool) -> None:
        self._is_attached = is_attached
        self.reading, self._writing = os.pipe()
        self._lock = threading.Lock()
        self._is_open = True

    def __enter__(self) -> Lifeline:
        if self._is_attached:
            # Under a number of its own: a launcher may put something else in its place.
            source = os.dup(0)
            threading.Thread(
                target=self._watch, args=(source,), name="command line", daemon=True
            ).start()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._request_stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()

    def cut(self) -> None:
        """Asks all ranks to stop."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._writing)

    def _request_stop(self, number: int, frame: Any) -> None:
        # Not from the handler itself: it may have interrupted the holder of the lock.
        threading.Thread(target=self.cut, daemon=True).start()

    def _watch(self, source: int) -> None:
        with contextlib.suppress(OSError):
            while os.read(source, 1):
                pass
        self.cut()
