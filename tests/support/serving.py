"""A dispatcher with replicas of `serve_replica.py`: real processes that need no torch."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flatout.schema.serve_control import ReplicaPlan, ServeEvent
from flatout.schema.serve_protocol import (
    ReplicaStart,
    TensorInput,
    TextInput,
    ValueInput,
    WireTensor,
)
from flatout.serve.dispatcher import InferRequest
from flatout.serve.queue_dispatcher import DispatchLimits, QueueDispatcher

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("serve_replica.py")))
# For what should take a moment, on a busy machine.
LONGEST_S = 60.0


def plan_for(
    name: str = "double", *, num_replicas: int = 1, latency_s: float | None = None,
    **parameters: Any,
) -> ReplicaPlan:  # fmt: skip
    """Replicas that multiply by `scale`; the parameters are those of `serve_replica.py`."""
    start = ReplicaStart(model=name, parameters=parameters)
    return ReplicaPlan(
        name=name, command=COMMAND, starts=(start,) * num_replicas, latency_s=latency_s
    )  # fmt: skip


@asynccontextmanager
async def dispatching(
    plan: ReplicaPlan, events: list[ServeEvent] | None = None, **limits: Any
) -> AsyncIterator[QueueDispatcher]:
    """A started dispatcher, ended at once behind the block."""
    report = [] if events is None else events
    dispatcher = QueueDispatcher(DispatchLimits(**limits), report.append)
    try:
        async with asyncio.timeout(LONGEST_S):
            await dispatcher.start(plan)
            yield dispatcher
    finally:
        await dispatcher.kill()


async def until(is_so: Callable[[], bool]) -> None:
    """Waits until something is so, as long as the block of `dispatching` may take."""
    while not is_so():
        await asyncio.sleep(0.01)


def numbers(values: Iterable[float], **options: Any) -> InferRequest:
    """A request with a sample of two equal numbers for each value."""
    pairs = [(value, value) for value in values]
    data = b"".join(struct.pack("<2f", *pair) for pair in pairs)
    tensor = WireTensor("x", "float32", (len(pairs), 2), data)
    return InferRequest(input=TensorInput(tensors=(tensor,)), num_samples=len(pairs), **options)


def action(what: str, **more: Any) -> InferRequest:
    """A request that does something to the replica: see `serve_replica.py`."""
    deadline_s = more.pop("deadline_s", None)
    return InferRequest(input=ValueInput(value={"do": what, **more}), deadline_s=deadline_s)


def text(words: str) -> InferRequest:
    """A request whose answer is generated word by word."""
    return InferRequest(input=TextInput(text=words))
