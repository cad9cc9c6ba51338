"""A training in containers, by `docker exec`: a launcher in each of them, supervised from here.

A program in a container is not a child of this process: it continues when the terminal is closed,
and its output goes to the run's folder directly.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from flatout.cluster.compose.docker import exec_words
from flatout.errors import RunFailed
from flatout.schema.placement import ending_code
from flatout.system import command
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.process_env import creation_flags
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.shutdown_grace import ShutdownGrace
from flatout.system.timeout_threads import run_together

_END_LIMIT_S = 30.0
# Docker's own process ends when what it has started has ended.
_CLIENT_LIMIT_S = 10.0
# The shell opens the log before it becomes the launcher.
_INTO_LOG = 'log="$1"; shift; exec "$@" >>"$log" 2>&1'


class NodePart(msgspec.Struct, frozen=True, kw_only=True):
    """A command in the container of one node. variables: in addition to the container's own."""

    container: str
    command: tuple[str, ...]
    variables: dict[str, str] = {}


class NodeJob:
    """Launchers in the nodes of a cluster; the first one has rank 0.

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
        self._grace = ShutdownGrace(folder)
        try:
            for part in parts:
                self._processes.append(_start(part, f"{inside}/{folder.log.name}", folder.log))
        except BaseException:
            self.kill()
            raise

    def is_running(self) -> bool:
        """Whether any node has not ended; once one has failed, the others have a limited time."""
        codes = self._codes()
        if len(codes) < len(self._processes) and self._grace.is_over(codes):
            self.kill()
        return len(self._codes()) < len(self._processes)

    def exit_code(self) -> int | None:
        """The exit code of the training; None while it is running."""
        codes = self._codes()
        return ending_code(codes) if len(codes) == len(self._processes) else None

    def _codes(self) -> dict[int, int]:
        """Exit codes of the nodes, by their numbers."""
        codes = {node: process.poll() for node, process in enumerate(self._processes)}
        return {node: code for node, code in codes.items() if code is not None}

    def kill(self) -> None:
        """Kills the run's processes in all containers."""
        tasks = {part.container: partial(_end, part, self._inside) for part in self._parts}
        run_together(tasks, _END_LIMIT_S)
        for process in self._processes:
            try:
                process.wait(_CLIENT_LIMIT_S)
            except subprocess.TimeoutExpired:
                # The engine has lost the container; its exit code will never be known.
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
                fix="flatout doctor shows what is wrong with Docker",
            ) from error


def _end(part: NodePart, inside: str) -> None:
    program = ("python3", "-P", "-m", "flatout.cluster.node_end", inside)
    command.run(exec_words(part.container, program), _END_LIMIT_S)
