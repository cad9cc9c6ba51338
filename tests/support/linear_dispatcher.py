"""A dispatcher that answers in its own process, and a real server for it on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import numpy as np

from flatout.errors import FlatoutError
from flatout.schema.serve_model import ServedModel, TensorSpec
from flatout.schema.serve_protocol import ReplicaStart, TensorInput, WireTensor
from flatout.serve.application import ApplicationOptions, application
from flatout.serve.dispatcher import (
    Answer,
    DispatchState,
    DispatchTotals,
    InferRequest,
    ReplicaStatus,
)
from flatout.serve.http_server import HttpServer, new_event_loop

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
MODEL = ServedModel(
    name="linear",
    version="1",
    format="run",
    inputs=(TensorSpec(name="x", dtype="float32", shape=(None, 4)),),
    outputs=(TensorSpec(name="logits", dtype="float32", shape=(None, 3)),),
    accepts=("tensors", "file", "text"),
    labels=("low", "middle", "high"),
    example=[1.0, 2.0, 3.0, 4.0],
    max_samples=8,
)


class LinearDispatcher:
    """Answers with a linear model; other inputs with their size.

    Args:
        model: what it says of itself.
        delay_s: until it answers.
        error: raised in place of an answer.
    """

    def __init__(
        self, model: ServedModel = MODEL, delay_s: float = 0.0, error: Exception | None = None
    ) -> None:
        self.served = model
        self.delay_s = delay_s
        self.error = error
        self.is_ready = True
        self.requests: list[InferRequest] = []
        self.num_cancelled = 0
        self.pieces: list[str | FlatoutError] = []

    @property
    def model(self) -> ServedModel:
        """The model that new requests get."""
        return self.served

    async def submit(self, request: InferRequest) -> Answer:
        """The answer to a request."""
        self.requests.append(request)
        model = self.served
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        rows, tensors = _answer(request, model)
        return Answer(
            rows=rows, tensors=tensors, model=model,
            queue_s=0.001, compute_s=0.002, batch_samples=request.num_samples,
        )  # fmt: skip

    async def stream(self, request: InferRequest) -> AsyncIterator[str]:
        """The pieces, one after the other."""
        self.requests.append(request)
        try:
            for piece in self.pieces:
                await asyncio.sleep(self.delay_s)
                if isinstance(piece, FlatoutError):
                    raise piece
                yield piece
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise

    def state(self) -> DispatchState:
        """One replica, and no queue."""
        replica = ReplicaStatus(index=0, phase="ready", pid=1, version="1", memory_bytes=1024)
        totals = DispatchTotals(num_answered=len(self.requests))
        return DispatchState(
            num_queued=0, queued_samples=0, max_queue=10, wait_s=0.0, replicas=(replica,),
            totals=totals, batch_limit=8,
        )  # fmt: skip

    async def swap(self, start: ReplicaStart) -> ServedModel:
        """Takes the name for the new version."""
        self.served = msgspec.structs.replace(self.served, version=start.model)
        return self.served

    async def swap_back(self) -> ServedModel:
        """There is nothing to swap back to."""
        return self.served


def _answer(
    request: InferRequest, model: ServedModel
) -> tuple[tuple[dict[str, Any], ...], tuple[WireTensor, ...]]:
    if not isinstance(request.input, TensorInput):
        return ({"fields": str(request.input)[:100]},), ()
    tensor = request.input.tensors[0]
    x = np.frombuffer(tensor.data, tensor.dtype).reshape(tensor.shape)
    y = x.reshape(tensor.shape[0], -1)[:, :4].astype(np.float32) @ WEIGHTS
    if request.is_raw:
        name = model.outputs[0].name
        return (), (WireTensor(name, "float32", y.shape, y.tobytes()),)
    labels = model.labels or ()
    return tuple({"label": labels[row.argmax()], "sum": float(row.sum())} for row in y), ()


@contextlib.contextmanager
def serving(
    dispatcher: LinearDispatcher, options: ApplicationOptions | None = None
) -> Iterator[str]:
    """A server on a free port of this computer; its host and port, without the scheme."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(application(dispatcher, options or ApplicationOptions()), listener)

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(server.run_until_stopped())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(120)
        listener.close()


def exchange(address: str, request: bytes, *, is_half_closed: bool = False) -> bytes:
    """Sends bytes as they are, and returns all that comes until the server closes."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(request)
        if is_half_closed:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while data := connection.recv(65536):
            received += data
    return received
