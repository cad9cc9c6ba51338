"""MessagePack messages behind their length, on a child's standard input and output.

`FrameStdio` is the child's end; the parent's is an event loop (`system/replica_process.py`).
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import time
from typing import Any, BinaryIO

import msgspec

from flatout.schema.serve_protocol import MOST_MESSAGE_BYTES
from flatout.system.json_process import exit_with_children, protected_stdio

_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 18
# To finish what was accepted once the parent has closed the pipe, or is gone.
_GRACE_S = 30.0


def frame(encoder: msgspec.msgpack.Encoder, message: msgspec.Struct) -> bytearray:
    """A message behind its length."""
    buffer = bytearray(_LENGTH_BYTES)
    encoder.encode_into(message, buffer, _LENGTH_BYTES)
    buffer[:_LENGTH_BYTES] = (len(buffer) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "big")
    return buffer


class FrameBuffer:
    """Cuts bytes that arrive in any pieces into messages.

    Args:
        kind: of the messages.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._unread = bytearray()

    def add(self, data: bytes) -> None:
        """Takes what has arrived."""
        self._unread += data

    def next(self) -> Any:
        """The next message; None: not all of it has arrived.

        Raises:
            msgspec.DecodeError: it is not of that kind.
        """
        if len(self._unread) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._unread[:_LENGTH_BYTES], "big")
        if length > MOST_MESSAGE_BYTES:
            raise msgspec.DecodeError(f"a message of {length} bytes")
        end = _LENGTH_BYTES + length
        if len(self._unread) < end:
            return None
        with memoryview(self._unread) as view:
            message = self._decoder.decode(view[_LENGTH_BYTES:end])
        del self._unread[:end]
        return message


class FrameStdio:
    """The child's end. From then on, whatever else it prints to stdout goes to stderr.

    Once the parent has closed the pipe, this process has half a minute to end by itself.

    Args:
        kind: of the messages that come.
    """

    def __init__(self, kind: Any) -> None:
        requests, self._answers = protected_stdio()
        self._pipe: _PolledPipe | _ThreadedPipe = (
            _ThreadedPipe(requests) if sys.platform == "win32" else _PolledPipe(requests)
        )
        self._buffer = FrameBuffer(kind)
        self._encoder = msgspec.msgpack.Encoder()

    def read(self) -> Any:
        """The next message, as soon as there is one; None at the end.

        Raises:
            msgspec.DecodeError: it is not of that kind.
        """
        while (message := self._buffer.next()) is None:
            if not (data := self._pipe.read()):
                return None
            self._buffer.add(data)
        return message

    def read_waiting(self) -> tuple[bool, Any]:
        """Whether a message, or the end, is here, and it, without waiting for one."""
        while (message := self._buffer.next()) is None:
            if not self._pipe.is_readable():
                return False, None
            if not (data := self._pipe.read()):
                return True, None
            self._buffer.add(data)
        return True, message

    def write(self, message: msgspec.Struct, *, is_flushed: bool = True) -> None:
        """Sends a message; without is_flushed, together with the next one."""
        self._answers.write(frame(self._encoder, message))
        if is_flushed:
            self.flush()

    def flush(self) -> None:
        """Sends what was written."""
        self._answers.flush()


class _PolledPipe:
    """Read by the thread that computes: a request does not wait until another one has woken up."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        assert sys.platform != "win32"
        self._arrived = select.poll()
        self._arrived.register(stream, select.POLLIN)
        threading.Thread(target=self._end_when_closed, daemon=True).start()

    def read(self) -> bytes:
        """What has arrived, as soon as something has; empty at the end."""
        return os.read(self._stream.fileno(), _CHUNK_BYTES)

    def is_readable(self) -> bool:
        """Whether `read` would return at once."""
        assert sys.platform != "win32"
        return bool(self._arrived.poll(0))

    def _end_when_closed(self) -> None:
        assert sys.platform != "win32"
        closed = select.poll()
        # The end of the parent is reported whatever is asked for.
        closed.register(self._stream, 0)
        closed.poll()
        _end_after_grace()


class _ThreadedPipe:
    """Read by a thread of its own: Windows cannot ask a pipe whether something has arrived."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read_all, daemon=True).start()

    def read(self) -> bytes:
        """As of _PolledPipe."""
        return self._arrived.get()

    def is_readable(self) -> bool:
        """As of _PolledPipe."""
        return not self._arrived.empty()

    def _read_all(self) -> None:
        while data := os.read(self._stream.fileno(), _CHUNK_BYTES):
            self._arrived.put(data)
        self._arrived.put(b"")
        _end_after_grace()


def _end_after_grace() -> None:
    time.sleep(_GRACE_S)
    exit_with_children()
