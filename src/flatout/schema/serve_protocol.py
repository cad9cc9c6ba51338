"""Messages between the server of `flatout serve` and its replicas.

Each message is MessagePack behind its length (4 bytes, big-endian), on the replica's standard input
and output. The server never loads torch; a replica never sees HTTP.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.schema.finding import Finding
from flatout.schema.serve_model import ServedModel

# A longer message is a broken stream: the server limits bodies and batches far below.
MOST_MESSAGE_BYTES = 1 << 30


class WireTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in C order, little-endian. shape: the first dimension counts samples.

    dtype: numpy's name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class TensorInput(msgspec.Struct, frozen=True, tag="tensors"):
    """Samples as the model's input tensors, all with the same first dimension."""

    tensors: tuple[WireTensor, ...]


class FileInput(msgspec.Struct, frozen=True, tag="file"):
    """The bytes of a file; suffix: found from its content, such as `.png`, never from its name.

    content_bytes: of the pixels or data in it; 0: no more than the file has.
    """

    data: bytes
    suffix: str = ""
    content_bytes: int = 0


class TextInput(msgspec.Struct, frozen=True, tag="text"):
    """A text."""

    text: str


class ValueInput(msgspec.Struct, frozen=True, tag="value"):
    """Another JSON value, for the experiment's `decode`."""

    value: Any


AnyInput = TensorInput | FileInput | TextInput | ValueInput


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """One request in a batch. id: unique among those that the replica has not answered.

    top: classes to report per sample. is_raw: answer with the output tensors, not with rows.
    """

    id: int
    input: AnyInput
    top: int = 1
    is_raw: bool = False
    is_stream: bool = False


class ReplicaStart(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The first message to a replica.

    model: a run's folder, or an exported file. experiment: in place of the run's own, as in
    `PredictJob`. parameters: of the experiment; fixed: recipe fields that the user fixed.
    max_samples: of a batch; None chooses by measuring, within latency_s for a batch.
    num_threads: most for the CPU; None leaves it to the recipe. spares_threads: it takes the fewest
    that meet latency_s, since further replicas get the others.
    """

    model: str
    experiment: str | None = None
    parameters: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    max_samples: int | None = None
    latency_s: float = 0.02
    num_threads: int | None = None
    spares_threads: bool = False


class Batch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """Requests to answer together.

    max_samples: computed together at most; None: as many as the replica has chosen.
    """

    items: tuple[BatchItem, ...]
    max_samples: int | None = None


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Measure batches again, between requests; `Measured` follows."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """How long batches take, and the best size, by all that was measured until now.

    finding: why they could not be measured again.
    """

    batch_s: dict[int, float]
    max_samples: int
    finding: Finding | None = None


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """The client of a streamed answer has left."""

    id: int


class ReplicaReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The replica is warm."""

    model: ServedModel
    findings: tuple[Finding, ...] = ()


class ReplicaStarting(msgspec.Struct, frozen=True, kw_only=True, tag="starting"):
    """What it does before it is ready, such as `compiling for 8 samples`."""

    what: str


class ReplicaFailed(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """The replica ends: the finding says why. exit_code: as of the error tree."""

    finding: Finding
    exit_code: int = 1


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag="answered"):
    """The answer to an item: rows by sample, or the output tensors where these were asked for."""

    id: int
    rows: tuple[dict[str, Any], ...] = ()
    tensors: tuple[WireTensor, ...] = ()


class ItemRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """An item that cannot be answered. is_input: the input's fault (HTTP 422), else the model's."""

    id: int
    finding: Finding
    is_input: bool = True


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """A piece of a streamed answer, in order; the item's Answered follows the last one."""

    id: int
    text: str


class BatchDone(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """All items of a batch were answered.

    first: the id of the batch's first item. Batches end in order, but for those with streams, which
    end when the last stream does. compute_s: seconds in the model; decode_s: in reading inputs.
    """

    first: int | None = None
    num_samples: int
    compute_s: float
    decode_s: float = 0.0
    memory_bytes: int | None = None


ToReplica = ReplicaStart | Batch | Cancel | Measure
FromReplica = (
    ReplicaStarting | ReplicaReady | ReplicaFailed | Answered | ItemRefused | Piece | BatchDone
    | Measured
)  # fmt: skip
