"""A replica that computes with numpy, and misbehaves when it is asked to.

What it does at its start is in the parameters: `scale`, `fixed_s` and `sample_s` (seconds of a
batch), `start` (`fail`, `die`, `print`, `slow`); when it measures again, too: `again` (the most
samples, `die` or `fail`). A JSON value as input says what a request does to it: `{"do": "crash"}`,
see `_do`.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy

from flatout.schema.finding import Finding
from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.schema.serve_protocol import (
    Answered,
    Batch,
    BatchDone,
    BatchItem,
    Cancel,
    FromReplica,
    ItemRefused,
    Measure,
    Measured,
    Piece,
    ReplicaFailed,
    ReplicaReady,
    ReplicaStart,
    ReplicaStarting,
    TensorInput,
    TextInput,
    ToReplica,
    ValueInput,
    WireTensor,
)

MOST_SAMPLES = 16


class Replica:
    """Reads in a thread, so that a Cancel is seen while it generates, and the end of stdin."""

    def __init__(self) -> None:
        self._messages: queue.Queue[ToReplica] = queue.Queue()
        self._cancelled: set[int] = set()
        # Each with the number of its request, and the words that are left.
        self._streams: deque[tuple[int, Iterator[str]]] = deque()
        self._out = os.fdopen(os.dup(1), "wb")
        threading.Thread(target=self._read, daemon=True).start()

    def run(self) -> None:
        start = self._messages.get()
        assert isinstance(start, ReplicaStart)
        self._start(start)
        while True:
            try:
                message = self._messages.get(block=not self._streams)
            except queue.Empty:
                self._advance()
                continue
            if isinstance(message, Measure):
                self._measure()
                continue
            assert isinstance(message, Batch)
            if message.items[0].is_stream:
                (item,) = message.items
                assert isinstance(item.input, TextInput)
                self._streams.append((item.id, iter(item.input.text.split())))
            else:
                self._compute(message)
            if self._streams:
                self._advance()

    def send(self, *messages: FromReplica) -> None:
        for message in messages:
            body = msgspec.msgpack.encode(message)
            self._out.write(len(body).to_bytes(4, "big") + body)
        self._out.flush()

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(ToReplica)
        while head := sys.stdin.buffer.read(4):
            message = decoder.decode(sys.stdin.buffer.read(int.from_bytes(head, "big")))
            if isinstance(message, Cancel):
                self._cancelled.add(message.id)
            else:
                self._messages.put(message)
        os._exit(0)

    def _start(self, start: ReplicaStart) -> None:
        self.name = start.model
        self.scale = start.parameters.get("scale", 2.0)
        self.fixed_s = start.parameters.get("fixed_s", 0.0)
        self.sample_s = start.parameters.get("sample_s", 0.0)
        self.again = start.parameters.get("again")
        self.send(ReplicaStarting(what="warming up"))
        how = start.parameters.get("start")
        if how == "fail":
            finding = Finding(rule="unknown-recipe-field", severity="error", problem="no such.")
            self.send(ReplicaFailed(finding=finding, exit_code=2))
            sys.exit(2)
        if how == "die":
            print("out of luck", file=sys.stderr)
            os._exit(7)
        if how == "print":
            os.write(1, b"a model that prints " * 10)
            time.sleep(60)
        if how == "slow":
            time.sleep(start.parameters["start_s"])
        most = start.max_samples or MOST_SAMPLES
        sizes = [size for size in (1, 2, 4, 8, 16) if size <= most]
        self.send(ReplicaReady(model=ServedModel(
            name=start.model, version=str(self.scale), format="run",
            inputs=(TensorSpec(name="x", dtype="float32", shape=(None, 2)),),
            accepts=("tensors", "value", "text"), can_stream=True, max_samples=most,
            batch_s={size: self.fixed_s + size * self.sample_s for size in sizes}
            if self.fixed_s or self.sample_s else {},
            num_threads=start.parameters.get("num_threads"),
        )))  # fmt: skip

    def _compute(self, batch: Batch) -> None:
        began_s = time.perf_counter()
        self.most_asked = batch.max_samples
        sizes = [_num_samples(item) for item in batch.items]
        time.sleep(self.fixed_s + self.sample_s * sum(sizes))
        answers = [self._answer(item, sum(sizes)) for item in batch.items]
        self.send(
            *(answer for answer in answers if answer is not None),
            BatchDone(
                first=batch.items[0].id,
                num_samples=sum(sizes),
                compute_s=time.perf_counter() - began_s,
            ),
        )

    def _answer(self, item: BatchItem, batch_samples: int) -> Answered | ItemRefused | None:
        facts = {
            "batch": batch_samples, "pid": os.getpid(), "model": self.name, "most": self.most_asked,
        }  # fmt: skip
        match item.input:
            case TensorInput(tensors=(tensor,)):
                values = numpy.frombuffer(tensor.data, tensor.dtype).reshape(tensor.shape)
                scaled = values * numpy.float32(self.scale)
                if item.is_raw:
                    raw = WireTensor("y", "float32", tensor.shape, scaled.tobytes())
                    return Answered(id=item.id, tensors=(raw,))
                rows = tuple({"y": row.tolist(), **facts} for row in scaled)
                return Answered(id=item.id, rows=rows)
            case ValueInput(value={"do": what, **more}):
                return self._do(item.id, what, more, facts)
            case ValueInput(value=value):
                return Answered(id=item.id, rows=({"y": value * self.scale, **facts},))
        raise AssertionError(item)

    def _advance(self) -> None:
        """A word of the stream that has waited longest."""
        number, words = self._streams.popleft()
        word = None if number in self._cancelled else next(words, None)
        if word == "CRASH":
            os._exit(9)
        if word is None:
            self.send(Answered(id=number), BatchDone(first=number, num_samples=1, compute_s=0.0))
            return
        self.send(Piece(id=number, text=word))
        time.sleep(0.02)
        self._streams.append((number, words))

    def _do(
        self, number: int, what: str, more: dict[str, Any], facts: dict[str, Any]
    ) -> Answered | ItemRefused | None:  # fmt: skip
        if what == "crash":
            print("crashing", file=sys.stderr, flush=True)
            os._exit(9)
        if what == "crash once":
            with open(more["path"], "ab") as file:
                if file.tell() == 0:
                    file.write(b"x")
                    file.flush()
                    os._exit(9)
        if what == "print":
            for piece in ("printed by", " the model", "\n"):
                print(piece, end="", file=sys.stderr, flush=True)
                time.sleep(0.05)
        if what == "hang":
            time.sleep(600)
        if what == "sleep":
            time.sleep(more["seconds"])
        if what == "skip":
            return None
        if what in ("refuse", "fail"):
            finding = Finding(rule="not-for-me", severity="error", problem=f"{what}.", because="so")
            return ItemRefused(id=number, finding=finding, is_input=what == "refuse")
        return Answered(id=number, rows=({"did": what, **facts},))

    def _measure(self) -> None:
        most = self.again
        if most == "die":
            os._exit(9)
        if most == "fail":
            finding = Finding(rule="model-failed", severity="warning", problem="no longer.")
            self.send(Measured(batch_s={}, max_samples=1, finding=finding))
            return
        self.send(Measured(batch_s={1: 0.001, most: 0.002}, max_samples=most))


def _num_samples(item: BatchItem) -> int:
    return item.input.tensors[0].shape[0] if isinstance(item.input, TensorInput) else 1


if __name__ == "__main__":
    Replica().run()
