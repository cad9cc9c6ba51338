"""MessagePack messages behind their length, on a child's standard input and output.

`FrameStdio` is the child's end; the parent's is an event loop (`system/replica_process.py`).
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, BinaryIO

import msgspec

from flatout.schema.serve_protocol import MOST_MESSAGE_BYTES
from flatout.schema.units import bytes_text
from flatout.system.json_process import exit_with_children, protected_stdio

_LENGTH_BYTES = 4
# To finish what was accepted once the parent has closed the pipe, or is gone.
_GRACE_S = 30.0


def frame(
    encoder: msgspec.msgpack.Encoder, message: msgspec.Struct, most_bytes: int = MOST_MESSAGE_BYTES
) -> bytearray:
    """A message behind its length.

    Raises:
        ValueError: it is too long. The other end would take it for a broken stream.
    """
    buffer = bytearray(_LENGTH_BYTES)
    encoder.encode_into(message, buffer, _LENGTH_BYTES)
    length = len(buffer) - _LENGTH_BYTES
    if length > most_bytes:
        allowed = bytes_text(most_bytes)
        raise ValueError(f"a message has {bytes_text(length)}; {allowed} are allowed")
    buffer[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES, "big")
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

    A thread reads ahead, so that the next message is here when the last one is done. Once the
    parent has closed the pipe, this process has half a minute to end by itself.

    Args:
        kind: of the messages that come.
    """

    def __init__(self, kind: Any) -> None:
        self._requests, self._answers = protected_stdio()
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._encoder = msgspec.msgpack.Encoder()
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read_all, daemon=True).start()

    def read(self) -> Any:
        """The next message, as soon as there is one; None at the end.

        Raises:
            msgspec.DecodeError: it is not of that kind.
        """
        return self._decoded(self._waiting.get())

    def read_waiting(self) -> tuple[bool, Any]:
        """Whether a message is here, and it, without waiting for one."""
        try:
            return True, self._decoded(self._waiting.get_nowait())
        except queue.Empty:
            return False, None

    def write(self, message: msgspec.Struct, *, is_flushed: bool = True) -> None:
        """Sends a message; without is_flushed, together with the next one."""
        self._answers.write(frame(self._encoder, message))
        if is_flushed:
            self.flush()

    def flush(self) -> None:
        """Sends what was written."""
        self._answers.flush()

    def _decoded(self, body: bytes | None) -> Any:
        return None if body is None else self._decoder.decode(body)

    def _read_all(self) -> None:
        while (body := _read_frame(self._requests)) is not None:
            self._waiting.put(body)
        self._waiting.put(None)
        time.sleep(_GRACE_S)
        exit_with_children()


def _read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next message; None at the end of the stream, or where it is broken."""
    length = int.from_bytes(head := stream.read(_LENGTH_BYTES), "big")
    if len(head) < _LENGTH_BYTES or length > MOST_MESSAGE_BYTES:
        return None
    body = stream.read(length)
    return body if len(body) == length else None
