"""Messages behind their length: cut from any pieces, and read by a child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.serve_protocol import Cancel, FromReplica, Piece
from flatout.system.message_frames import FrameBuffer, frame

SRC = str(Path(__file__).resolve().parents[2] / "src")
CHILD = f"""
import sys, time
sys.path.insert(0, {SRC!r})
from flatout.schema.serve_protocol import Piece, ToReplica
from flatout.system.message_frames import FrameStdio

stdio = FrameStdio(ToReplica)
print("this must not be among the messages", flush=True)
while not (found := stdio.read_waiting())[0]:
    time.sleep(0.01)
stdio.write(Piece(id=found[1].id, text="waited"), is_flushed=False)
while (message := stdio.read()) is not None:
    stdio.write(Piece(id=message.id, text="read"))
stdio.write(Piece(id=0, text="end"))
"""


def framed(*messages: msgspec.Struct) -> bytes:
    encoder = msgspec.msgpack.Encoder()
    return b"".join(frame(encoder, message) for message in messages)


@given(st.lists(st.text(max_size=30), max_size=8), st.integers(1, 40))
def test_messages_are_the_same_in_pieces_of_any_size(texts: list[str], size: int) -> None:
    messages = [Piece(id=number, text=text) for number, text in enumerate(texts)]
    sent, found = framed(*messages), []
    buffer = FrameBuffer(FromReplica)
    for start in range(0, len(sent), size):
        buffer.add(sent[start : start + size])
        while (message := buffer.next()) is not None:
            found.append(message)
    assert found == messages


@pytest.mark.parametrize("sent", [b"hello, world", b"\x00\x00\x00\x02{}", framed(Cancel(id=1))])
def test_something_else_than_a_message_is_refused(sent: bytes) -> None:
    buffer = FrameBuffer(FromReplica)
    buffer.add(sent)
    with pytest.raises(msgspec.DecodeError):
        buffer.next()


def test_a_message_that_the_other_end_would_refuse_is_not_sent() -> None:
    with pytest.raises(ValueError, match="a message has"):
        frame(msgspec.msgpack.Encoder(), Piece(id=1, text="x" * 1000), most_bytes=100)


def test_child_reads_until_the_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        # It is looking for the first one by then.
        assert child.stderr.readline().startswith(b"this must not be")
        sent = framed(Cancel(id=1), Cancel(id=2), Cancel(id=3))
        child.stdin.write(sent[:7])
        child.stdin.flush()
        child.stdin.write(sent[7:])
        child.stdin.close()
        buffer = FrameBuffer(FromReplica)
        buffer.add(child.stdout.read())
        assert child.stderr.read() == b""
    found = [(message.id, message.text) for message in iter(buffer.next, None)]
    assert found == [(1, "waited"), (2, "read"), (3, "read"), (0, "end")]
