"""Processes that stand for nodes: started all or none, read line by line, ended together."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from flatout.errors import RunFailed, UsageError
from flatout.schema.script_launch import (
    LaunchRequest,
    NodeAddresses,
    NodeEnded,
    NodeEvent,
    NodeSaid,
)
from flatout.schema.units import seconds_text
from flatout.system import clock
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.die_with_parent import GRACE_S as ELSEWHERE_S
from flatout.system.process_env import creation_flags, worker_environment
from flatout.system.progress_output import printed_lines
from flatout.system.store.launch_folder import launch_lock, launches_folder
from flatout.system.store.run_folder import free_id
from flatout.system.worker_process import WorkerProcess, ending_text

_POLL_S = 0.1
# A stopping framework may have to leave its rendezvous.
_GRACE_S = 5.0
_LAST_LINES_S = 2.0
_KEPT_LINES = 400


def free_addresses(host: str, count: int) -> list[NodeAddresses]:
    """Addresses on a machine for so many nodes: distinct ports that are free now."""
    with contextlib.ExitStack() as open_ones:
        ports = []
        for _ in range(2 * count):
            listening = open_ones.enter_context(socket.socket())
            listening.bind((host, 0))
            ports.append(int(listening.getsockname()[1]))
    return [
        NodeAddresses(host, (first, ports[count + at])) for at, first in enumerate(ports[:count])
    ]


def log_path(folder: Path, node: int) -> Path:
    """The log file of a node."""
    return folder / f"node{node}.log"


class NodeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command that starts a node. variables: in addition to those of this process.

    is_elsewhere: what is started here is the client of something that ends when its standard input
    does.
    """

    argv: tuple[str, ...]
    variables: dict[str, str] = {}
    is_elsewhere: bool = False


class NodeProcesses:
    """Running processes, ended with the block that they are used in.

    Args:
        commands: of each node.
        folder: for a log of each node; made if missing.

    Raises:
        UsageError: script-not-started, folder-not-writable.
    """

    def __init__(self, commands: Sequence[NodeCommand], folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: queue.Queue[NodeSaid] = queue.Queue()
        self._readers: list[threading.Thread] = []
        with mapped_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = launch_lock(folder)
        # Another launch may write its logs there, too.
        self._lock.acquire()
        try:
            for node, command in enumerate(commands):
                self._start(node, command)
        except OSError as error:
            self.end()
            raise UsageError(
                "script-not-started",
                f"node {len(self._processes)} of {len(commands)} could not be started.",
                because=error.strerror or str(error),
                fix="start fewer nodes, or free the missing resource; the nodes already started "
                "were stopped",
            ) from error
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> NodeProcesses:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def _start(self, node: int, command: NodeCommand) -> None:
        log_file = log_path(self._folder, node)
        with mapped_os_errors(log_file):
            log = open(log_file, "wb")
        try:
            process = subprocess.Popen(
                command.argv,
                env={**worker_environment(), "PYTHONUNBUFFERED": "1", **command.variables},
                stdin=subprocess.PIPE if command.is_elsewhere else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                creationflags=creation_flags(),
            )
        except BaseException:
            log.close()
            raise
        self._processes.append(process)
        assert isinstance(process.stdout, io.BufferedReader)
        reader = threading.Thread(
            target=_read, args=(node, process.stdout, log, self._lines), daemon=True
        )
        reader.start()
        self._readers.append(reader)

    def follow(self, limit_s: float | None) -> Iterator[NodeSaid | NodeEnded]:
        """Yields the output of the nodes, and how each ends; where one fails, the others are ended.

        Raises:
            TimeoutError: the limit has passed. The nodes are ended.
        """
        began_s = clock.elapsed_s()
        running = dict(enumerate(self._processes))
        while running:
            yield from self._new_lines(_POLL_S)
            ended = {
                node: process for node, process in running.items() if process.poll() is not None
            }
            for node in ended:
                del running[node]
            has_failed = any(process.returncode for process in ended.values())
            if has_failed:
                self.end()
            if ended:
                self._wait_for_readers(ended)
                yield from self._new_lines(0)
            for node, process in ended.items():
                yield self._ended(node, process, is_ours=False)
            if has_failed:
                for node, process in running.items():
                    yield self._ended(node, process, is_ours=True)
                return
            if limit_s is not None and running and clock.elapsed_s() - began_s > limit_s:
                self.end()
                yield from self._new_lines(0)
                raise TimeoutError

    def end(self) -> None:
        """Asks all running nodes to exit, and kills those that do not, with their children."""
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            _request_exit(process)
        until_s = (
            clock.elapsed_s() + _GRACE_S + ELSEWHERE_S * any(process.stdin for process in running)
        )
        while any(process.poll() is None for process in running) and clock.elapsed_s() < until_s:
            clock.sleep_s(_POLL_S)
        for process in running:
            # Also where the node has ended: what it has started may not have.
            WorkerProcess(process).kill()
        self._lock.release()

    def _new_lines(self, wait_s: float) -> Iterator[NodeSaid]:
        with contextlib.suppress(queue.Empty):
            yield self._lines.get(timeout=wait_s) if wait_s else self._lines.get_nowait()
            while True:
                yield self._lines.get_nowait()

    def _wait_for_readers(self, ended: Mapping[int, object]) -> None:
        # What a process has left behind may hold its output open.
        for node in ended:
            self._readers[node].join(_LAST_LINES_S)

    def _ended(self, node: int, process: subprocess.Popen[bytes], *, is_ours: bool) -> NodeEnded:
        return NodeEnded(
            node=node,
            exit_code=_exit_code(process),
            log=str(log_path(self._folder, node)),
            is_ours=is_ours,
        )


def _read(
    node: int, stream: io.BufferedReader, log: IO[bytes], lines: queue.Queue[NodeSaid]
) -> None:
    with stream, log:
        for line in printed_lines(stream):
            # A full disk costs the log, not the training.
            with contextlib.suppress(OSError):
                log.write(line)
                log.flush()
            lines.put(NodeSaid(node=node, text=line.decode(errors="replace").rstrip("\r\n")))


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a node; a remote client encodes a signal as a shell does."""
    code: int = process.returncode
    return 128 - code if process.stdin is not None and code > 128 else code


def _request_exit(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        # The node itself ends with it; the client that is here would leave it behind.
        with contextlib.suppress(OSError):
            process.stdin.close()
    elif sys.platform == "win32":
        process.terminate()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def find_script(text: str) -> Path:
    """The full path of a user's script.

    Raises:
        UsageError: script-not-found.
    """
    script = Path(text).expanduser().absolute()
    if script.is_file():
        return script
    raise UsageError(
        "script-not-found",
        f"script not found: {script}",
        fix="give the path of a Python file",
    )


def log_folder(request: LaunchRequest, script: Path) -> Path:
    """The folder for logs of a launch: the given one, else a new one in flatout's state folder."""
    if request.logs is not None:
        return Path(request.logs).expanduser().absolute()
    parent = launches_folder()
    return parent / free_id(script.stem, parent)


def judged(
    request: LaunchRequest, events: Iterable[NodeEvent], folder: Path
) -> Iterator[NodeEvent]:
    """The events of nodes, and at their end an error if one of them has failed.

    Raises:
        RunFailed: node-failed, launch-too-long.
    """
    last: dict[int, deque[str]] = {}
    failed: NodeEnded | None = None
    try:
        for event in events:
            if isinstance(event, NodeSaid):
                last.setdefault(event.node, deque(maxlen=_KEPT_LINES)).append(event.text)
            elif isinstance(event, NodeEnded) and event.exit_code and failed is None:
                failed = event
            yield event
    except TimeoutError as error:
        raise RunFailed(
            "launch-too-long",
            f"nodes were still running after {seconds_text(request.limit_s or 0)}; all were "
            "stopped.",
            because="nodes that hang cannot be distinguished from nodes that compute",
            fix=f"check their logs in {folder}, or allow more time: --limit SECONDS",
            printed="\n".join(line for lines in last.values() for line in lines),
        ) from error
    if failed is not None:
        output = [line for line in last.get(failed.node, ()) if line.strip()]
        raise RunFailed(
            "node-failed",
            f"node {failed.node} {ending_text(failed.exit_code)}; the others were stopped.",
            because=output[-1].strip() if output else "it printed nothing",
            fix=f"read its log: {failed.log}",
            printed="\n".join(output),
        )
