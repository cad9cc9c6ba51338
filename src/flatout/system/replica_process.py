"""A replica of `flatout serve` as a process: frames on its pipes, read by the event loop.

The end of its stdin means that the server is gone, and the replica ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from flatout.schema.serve_protocol import FromReplica, ToReplica
from flatout.system.kill_tree import kill_tree
from flatout.system.message_frames import FrameBuffer, frame
from flatout.system.process_env import creation_flags, worker_environment

# How much of its stderr is kept: the end of it.
_PRINTED_BYTES = 100_000
# What it wrote last is read after it has ended, unless a child of it keeps the pipes open.
_LAST_WORDS_S = 2.0
# Of the free memory, for further replicas: batches need some, too.
_MEMORY_SHARE = 0.7


def replica_command(*python: str) -> tuple[str, ...]:
    """The command of a replica. python: its interpreter, or the words that lead to it."""
    # -P: a file `queue.py` in the current folder must not be taken for Python's own.
    return (*python, "-P", "-X", "faulthandler", "-m", "flatout.engine.serve.worker")


def num_copies_that_fit(pid: int | None) -> int:
    """How many more processes of the size of this one fit into memory; 0 if it has ended."""
    # Only here: it takes 20 ms to import.
    import psutil

    from flatout.system.free_memory import free_memory_bytes

    try:
        used_bytes = psutil.Process(pid).memory_info().rss if pid is not None else 0
    except psutil.Error:
        return 0
    return int(free_memory_bytes() * _MEMORY_SHARE // used_bytes) if used_bytes else 0


class ReplicaProcess(asyncio.SubprocessProtocol):
    """A running replica; `start_process` makes it.

    Args:
        receive: called with each message, in order.
        pass_on: called with what it writes to stderr.
    """

    def __init__(
        self, receive: Callable[[FromReplica], None], pass_on: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._receive = receive
        self._pass_on = pass_on
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._encoder = msgspec.msgpack.Encoder()
        self._arrived = FrameBuffer(FromReplica)
        self._printed: deque[bytes] = deque()
        self._printed_bytes = 0
        self._transport: asyncio.SubprocessTransport
        self._stdin: asyncio.WriteTransport
        self.is_stream_broken = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._transport.get_pid()

    def send(self, message: ToReplica) -> None:
        """Sends a message; a replica that has died is noticed by `wait`."""
        if self._stdin.is_closing():
            return
        self._stdin.write(frame(self._encoder, message))

    def close(self) -> None:
        """Closes its stdin: it finishes what it has, and ends."""
        self._stdin.close()

    def kill(self) -> None:
        """Kills it, with all it has started."""
        if not self._ended.done():
            kill_tree(self.pid)

    async def wait(self) -> int:
        """Waits until it has ended; its exit code, negative for a signal."""
        return await asyncio.shield(self._ended)

    def printed(self) -> str:
        """The end of what it has written to stderr."""
        return b"".join(self._printed)[-_PRINTED_BYTES:].decode(errors="replace")

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has started."""
        self._transport = cast(asyncio.SubprocessTransport, transport)
        stdin = self._transport.get_pipe_transport(0)
        self._stdin = cast(asyncio.WriteTransport, stdin)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It has written something."""
        if fd == 1:
            self._take(data)
            return
        self._pass_on(data.decode(errors="replace"))
        self._printed.append(data)
        self._printed_bytes += len(data)
        while self._printed_bytes - len(self._printed[0]) > _PRINTED_BYTES:
            self._printed_bytes -= len(self._printed.popleft())

    def process_exited(self) -> None:
        """It has ended; what it started must not stay."""
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._loop.call_later(_LAST_WORDS_S, self.connection_lost, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and all it wrote was read."""
        if self._ended.done():
            return
        code = self._transport.get_returncode()
        self._ended.set_result(code if code is not None else 1)
        self._transport.close()

    def _take(self, data: bytes) -> None:
        if self.is_stream_broken:
            return
        self._arrived.add(data)
        try:
            while (message := self._arrived.next()) is not None:
                self._receive(message)
        except msgspec.DecodeError:
            # What comes next cannot be read: it was the output of a print, or worse.
            self.is_stream_broken = True
            self.kill()


async def start_process(
    command: Sequence[str],
    receive: Callable[[FromReplica], None],
    pass_on: Callable[[str], None],
) -> ReplicaProcess:
    """Starts a replica, the leader of a process group of its own, so that Ctrl-C does not reach it.

    Args:
        command: of `replica_command`.
        receive, pass_on: as of ReplicaProcess.

    Raises:
        OSError: no process could be started.
    """
    options: dict[str, Any] = (
        {"creationflags": creation_flags()}
        if sys.platform == "win32"
        else {"start_new_session": True}
    )
    _, process = await asyncio.get_running_loop().subprocess_exec(
        lambda: ReplicaProcess(receive, pass_on), *command, env=worker_environment(), **options
    )
    return process
