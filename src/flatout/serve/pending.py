"""An accepted request, from the queue to its answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from flatout.schema.serve_protocol import Answered, BatchItem, ItemRefused
from flatout.serve.batching import batch_length, input_bytes
from flatout.serve.dispatcher import Answer, InferRequest


class Pending:
    """One request until it is answered, refused, or its client has left.

    num_bytes: of its input in memory. is_alone: must be computed in a batch of its own. is_suspect:
    it was in a batch that killed a replica. pieces: of a streamed answer, then None.
    """

    __slots__ = (
        "accepted_s", "deadline_s", "future", "has_pieces", "is_alone", "is_suspect", "item",
        "num_bytes", "num_samples", "pieces", "sent_s",
    )  # fmt: skip

    def __init__(
        self,
        request: InferRequest,
        number: int,
        *,
        is_stream: bool,
        accepted_s: float,
        deadline_s: float,
    ) -> None:
        self.item = BatchItem(
            id=number,
            input=request.input,
            top=request.top,
            is_raw=request.is_raw,
            is_stream=is_stream,
        )
        self.num_samples = request.num_samples
        self.num_bytes = input_bytes(request.input)
        self.accepted_s = accepted_s
        self.deadline_s = deadline_s
        self.sent_s = accepted_s
        self.is_alone = is_stream
        self.is_suspect = False
        self.has_pieces = False
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.pieces: asyncio.Queue[str | None] | None = asyncio.Queue() if is_stream else None
        if is_stream:
            self.future.add_done_callback(self._end_pieces)

    def fail(self, error: Exception) -> None:
        """Ends it without an answer, unless its client has left."""
        if not self.future.done():
            self.future.set_exception(error)

    def answer(self, answer: Answer) -> None:
        """Ends it with an answer, unless its client has left."""
        if not self.future.done():
            self.future.set_result(answer)

    def _end_pieces(self, ended: asyncio.Future[Answer]) -> None:
        assert self.pieces is not None
        self.pieces.put_nowait(None)


class RequestQueue:
    """Requests that wait for a replica, the oldest first.

    A replica takes streams in addition to batches: neither of the two waits for the other.

    num_samples: of the requests that form batches.
    """

    def __init__(self) -> None:
        self._batched: deque[Pending] = deque()
        self._streamed: deque[Pending] = deque()
        self.num_samples = 0

    def __len__(self) -> int:
        return len(self._batched) + len(self._streamed)

    def __iter__(self) -> Iterator[Pending]:
        yield from self._batched
        yield from self._streamed

    def __contains__(self, pending: Pending) -> bool:
        return pending in self._line(pending)

    def num_waiting(self, *, is_stream: bool) -> int:
        """How many streams wait, or how many others."""
        return len(self._streamed if is_stream else self._batched)

    def append(self, pending: Pending) -> None:
        """Adds a request at the end."""
        self._line(pending).append(pending)
        if not pending.item.is_stream:
            self.num_samples += pending.num_samples

    def put_back(self, items: Sequence[Pending]) -> None:
        """Adds requests at the front, in their order."""
        for pending in reversed(items):
            self._line(pending).appendleft(pending)
            if not pending.item.is_stream:
                self.num_samples += pending.num_samples

    def remove(self, items: Iterable[Pending]) -> None:
        """Takes requests out."""
        for pending in items:
            self._line(pending).remove(pending)
            if not pending.item.is_stream:
                self.num_samples -= pending.num_samples

    def next_stream(self) -> Pending:
        """Takes out the oldest stream."""
        return self._streamed.popleft()

    def next_batch(self, limit: int) -> list[Pending]:
        """Takes out what forms the next batch."""
        sizes = ((one.num_samples, one.num_bytes, one.is_alone) for one in self._batched)
        batch = [self._batched.popleft() for _ in range(batch_length(sizes, limit))]
        self.num_samples -= sum(pending.num_samples for pending in batch)
        return batch

    def _line(self, pending: Pending) -> deque[Pending]:
        return self._streamed if pending.item.is_stream else self._batched


class SentBatch:
    """Requests that a replica computes together.

    A streamed request is always alone. unanswered: by number. results: what came for the others.
    began_s: when the replica had nothing else before it; None: not yet.
    """

    def __init__(self, items: list[Pending]) -> None:
        self.first = items[0].item.id
        self.unanswered = {pending.item.id: pending for pending in items}
        self.results: list[tuple[Pending, Answered | ItemRefused]] = []
        self.num_samples = sum(pending.num_samples for pending in items)
        self.is_stream = items[0].item.is_stream
        self.began_s: float | None = None
