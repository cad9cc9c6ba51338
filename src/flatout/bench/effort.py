"""How much `flatout bench limits` measures."""

from __future__ import annotations

import msgspec

MIB = 2**20


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of measuring.

    name: full or quick.
    num_processes: that import torch and measure everything, one after the other.
    num_blocks: samples of each quantity per process. block_s: length of one.
    call_s: how long a single matrix product may take.
    num_reduced: samples of each all-reduce, from one start of its processes.
    stream_bytes, num_small_files: written and read in each folder, so many times as num_disk says.
    num_starts: of Python.
    """

    name: str
    num_processes: int
    num_blocks: int
    block_s: float
    call_s: float
    num_reduced: int
    stream_bytes: int
    num_small_files: int
    num_disk: int
    num_starts: int

    @property
    def settings(self) -> dict[str, str]:
        """As text, for the file."""
        values = msgspec.structs.asdict(self)
        return {
            "effort": values.pop("name"),
            **{name: str(value) for name, value in values.items()},
        }


# Ten processes find a difference of 5 % (benchmarks/compare_trials.py); most of their time is the
# import of torch, so each measures little.
FULL = Effort(
    name="full", num_processes=10, num_blocks=5, block_s=0.05, call_s=0.1, num_reduced=12,
    stream_bytes=128 * MIB, num_small_files=256, num_disk=10, num_starts=6,
)  # fmt: skip
QUICK = Effort(
    name="quick", num_processes=1, num_blocks=5, block_s=0.03, call_s=0.05, num_reduced=5,
    stream_bytes=64 * MIB, num_small_files=128, num_disk=2, num_starts=1,
)  # fmt: skip
