"""What the HTTP application asks of that which computes: the one border between the two."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol

import msgspec

from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import AnyInput, WireTensor

# waiting: it has died, and is started again after a pause. retiring: finishes what it has.
ReplicaPhase = Literal["starting", "ready", "retiring", "waiting"]


class InferRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One client's request, already checked by the application.

    num_samples: of tensors: the first dimension; 1 otherwise.
    top: classes to report per sample. is_raw: output tensors rather than rows.
    deadline_s: how long from now the client waits; None: the server's limit.
    """

    input: AnyInput
    num_samples: int = 1
    top: int = 1
    is_raw: bool = False
    deadline_s: float | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Rows by sample, or the output tensors where these were asked for.

    model: the one that computed it, which a swap may have replaced since.
    queue_s: from the request until it went to a replica; compute_s: of its batch in the model.
    batch_samples: of its batch.
    """

    rows: tuple[dict[str, Any], ...] = ()
    tensors: tuple[WireTensor, ...] = ()
    model: ServedModel
    queue_s: float
    compute_s: float
    batch_samples: int


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replica. num_in_flight: requests that were sent to it and are not answered.

    pid, memory_bytes: None while it has no process, or has not computed yet.
    version: of its model. device: as the model says; empty until it is ready.
    """

    index: int
    phase: ReplicaPhase
    pid: int | None = None
    version: str = ""
    device: str = ""
    num_restarts: int = 0
    num_in_flight: int = 0
    memory_bytes: int | None = None


class DispatchTotals(msgspec.Struct, kw_only=True):
    """What has happened since the start.

    num_requests: accepted into the queue; each ends as one of answered, refused (its input),
    failed, expired (its deadline passed) or cancelled (its client left).
    num_busy: not accepted, because the queue was full or the wait too long.
    num_retried: after the death of a replica that was computing them.
    num_unmeasured: swaps after which batches could not be measured again.
    compute_s: of all batches, in the model.
    """

    num_requests: int = 0
    num_answered: int = 0
    num_refused: int = 0
    num_failed: int = 0
    num_expired: int = 0
    num_cancelled: int = 0
    num_busy: int = 0
    num_retried: int = 0
    num_samples: int = 0
    num_batches: int = 0
    num_restarts: int = 0
    num_swaps: int = 0
    num_unmeasured: int = 0
    compute_s: float = 0.0
    decode_s: float = 0.0


class DispatchState(msgspec.Struct, frozen=True, kw_only=True):
    """How it is at the moment. num_queued: requests not yet sent to a replica; queued_samples: of
    them, one for a stream. max_queue: of streams, and of others.

    wait_s: how long a request that comes now is estimated to wait; None where nothing was measured.
    batch_limit: the most samples in a batch; None before the start.
    """

    num_queued: int
    queued_samples: int
    max_queue: int
    wait_s: float | None
    replicas: tuple[ReplicaStatus, ...]
    totals: DispatchTotals
    batch_limit: int | None = None
    is_stopping: bool = False
    is_swapping: bool = False


class Dispatcher(Protocol):
    """What answers requests. Its errors are those of `serve_errors.py`."""

    @property
    def model(self) -> ServedModel:
        """The model that new requests get."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether at least one replica is warm, and the server is not stopping."""
        ...

    async def submit(self, request: InferRequest) -> Answer:
        """The answer to a request; cancelled with its task, which takes it out of the queue.

        Raises:
            ServerBusy, ServerStopping, RequestKilledModel, InputNotAccepted, ModelFailed
        """
        ...

    def stream(self, request: InferRequest) -> AsyncIterator[str]:
        """The pieces of a generated answer. Closing the iterator ends the generation.

        Raises:
            The same as `submit`, at the first piece or in between.
        """
        ...

    def state(self) -> DispatchState:
        """Queue, replicas and totals, for /metrics and /health."""
        ...
