"""The requests of `flatout bench limits` to its processes, and the lines of their replies."""

from __future__ import annotations

import msgspec

from flatout.schema.bench import BenchRow
from flatout.schema.predict_protocol import ProcessFailed, Reply

# What `Measuring` says of the pinned memory, which can end the process.
PINNED = "pinned memory"


class RoofRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one process measures.

    device: `cpu` or `cuda:N`. num_blocks: samples per quantity. block_s: length of each.
    call_s: how long a single matrix product may take; it decides on their size.
    sizes: the sizes that an earlier process has chosen, by row id.
    is_last: also what may leave the device unusable, which is the limit of pinned memory.
    """

    device: str
    num_blocks: int
    block_s: float
    call_s: float
    sizes: dict[str, int] = {}
    is_last: bool = False


class AllReduceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of an all-reduce. path: a file in which the ranks find each other."""

    backend: str
    rank: int
    world_size: int
    path: str
    num_blocks: int
    block_s: float


class Ready(Reply, frozen=True, kw_only=True, tag="ready"):
    """torch is loaded.

    name, uuid: of the GPU, None on a CPU. instructions: the widest that torch uses on a CPU.
    num_gpus: those that torch can use.
    """

    torch: str
    num_threads: int
    num_gpus: int
    name: str | None = None
    uuid: str | None = None
    instructions: str | None = None


class Measuring(Reply, frozen=True, kw_only=True, tag="measuring"):
    """What is measured from now on."""

    what: str


class Measured(Reply, frozen=True, kw_only=True, tag="measured"):
    """The samples of one quantity."""

    row: BenchRow


AnyRoofReply = Ready | Measuring | Measured | ProcessFailed
