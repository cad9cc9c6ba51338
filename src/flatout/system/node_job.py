"""A training in containers, by `docker exec`: a launcher in each of them, attended from here.

What runs in a container is no child of this process: it goes on when the terminal is closed, and
what it prints goes into the run's folder without passing here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from flatout.errors import RunFailed
from flatout.nouns.placement import ending_code
from flatout.system import command
from flatout.system.child import creation_flags
from flatout.system.compose import exec_words
from flatout.system.grace import Grace
from flatout.system.runs import RunFolder
from flatout.system.store import mapped_os_errors
from flatout.system.together import run_together

_END_LIMIT_S = 30.0
# Docker's own process ends when what it has started has ended.
_CLIENT_LIMIT_S = 10.0
# The shell opens the log before it becomes the launcher.
_INTO_LOG = 'log="$1"; shift; exec "$@" >>"$log" 2>&1'


class NodePart(msgspec.Struct, frozen=True, kw_only=True):
    """What one node does: a command in a container, with variables beside the container's own."""

    container: str
    command: tuple[str, ...]
    variables: dict[str, str] = {}


class NodeJob:
    """Launchers in the nodes of a cluster, the first of which has rank 0.

    Args:
        parts: of each node.
        inside: the run's folder as the nodes see it.
        folder: of the run as it is seen here: Docker's own complaints go into its log, too.

    Raises:
        RunFailed: docker-failed; UsageError: bad-setting.
    """

    def __init__(self, parts: Sequence[NodePart], inside: str, folder: RunFolder) -> None:
        self._parts = tuple(parts)
        self._inside = inside
        self._processes: list[subprocess.Popen[bytes]] = []
        self._grace = Grace(folder)
        try:
            for part in parts:
                self._processes.append(_start(part, f"{inside}/{folder.log.name}", folder.log))
        except BaseException:
            self.kill()
            raise

    def is_running(self) -> bool:
        """Whether any node has not ended; once one has failed, the others have only so long."""
        codes = self._codes()
        if len(codes) < len(self._processes) and self._grace.is_over(codes):
            self.kill()
        return len(self._codes()) < len(self._processes)

    def exit_code(self) -> int | None:
        """How the training ended; None while it has not."""
        codes = self._codes()
        return ending_code(codes) if len(codes) == len(self._processes) else None

    def _codes(self) -> dict[int, int]:
        """How nodes have ended, by their numbers."""
        codes = {node: process.poll() for node, process in enumerate(self._processes)}
        return {node: code for node, code in codes.items() if code is not None}

    def kill(self) -> None:
        """Ends at once what the run has in any of the containers."""
        tasks = {part.container: partial(_end, part, self._inside) for part in self._parts}
        run_together(tasks, _END_LIMIT_S)
        for process in self._processes:
            try:
                process.wait(_CLIENT_LIMIT_S)
            except subprocess.TimeoutExpired:
                # The engine has lost the container; nobody will tell how it ended.
                process.kill()
                process.wait()


def _start(part: NodePart, inside: str, log: Path) -> subprocess.Popen[bytes]:
    program = ("sh", "-c", _INTO_LOG, "sh", inside, *part.command)
    with mapped_os_errors(log), open(log, "ab") as file:
        try:
            return subprocess.Popen(
                exec_words(part.container, program, part.variables),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # A terminal that is closed does not reach it.
                start_new_session=True,
                creationflags=creation_flags(),
            )
        except OSError as error:
            raise RunFailed(
                "docker-failed",
                "`docker exec` cannot be started.",
                because=error.strerror or str(error),
                fix="flatout doctor tells what is wrong with Docker",
            ) from error


def _end(part: NodePart, inside: str) -> None:
    program = ("python3", "-P", "-m", "flatout.system.node_end", inside)
    command.run(exec_words(part.container, program), _END_LIMIT_S)
