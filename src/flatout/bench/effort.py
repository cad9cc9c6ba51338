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
    stream_bytes, num_small_files: written and read in each folder, so many times as num_disk says.
    num_starts: of Python.
    """

    name: str
    num_processes: int
    num_blocks: int
    block_s: float
    call_s: float
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


FULL = Effort(
    name="full", num_processes=3, num_blocks=5, block_s=0.1, call_s=0.2,
    stream_bytes=256 * MIB, num_small_files=512, num_disk=3, num_starts=3,
)  # fmt: skip
QUICK = Effort(
    name="quick", num_processes=1, num_blocks=5, block_s=0.03, call_s=0.05,
    stream_bytes=64 * MIB, num_small_files=128, num_disk=2, num_starts=1,
)  # fmt: skip
