"""How much `flatout bench run` measures."""

from __future__ import annotations

import msgspec


class RunEffort(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of measuring.

    num_processes: for each workload, way and device; those of all ways and devices take turns.
    num_blocks: of step times per process. block_s: least length of each.
    search_s: for a recipe, where none is stored; None takes the defaults then.
    """

    name: str
    num_processes: int
    num_blocks: int
    block_s: float
    search_s: float | None

    @property
    def settings(self) -> dict[str, str]:
        """As text, for the file."""
        return {
            "effort": self.name,
            "num_processes": str(self.num_processes),
            "num_blocks": str(self.num_blocks),
            "block_s": str(self.block_s),
            "search_s": "no search" if self.search_s is None else f"{self.search_s:g}",
        }


FULL_RUN = RunEffort(name="full", num_processes=3, num_blocks=5, block_s=0.2, search_s=20.0)
QUICK_RUN = RunEffort(name="quick", num_processes=1, num_blocks=5, block_s=0.05, search_s=None)
