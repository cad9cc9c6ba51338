"""How many steps a profile consists of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_STEPS = 3
_MOST_STEPS = 2000
# A trace of more is large, and says nothing new.
_MOST_PROFILED_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """How long steps of each kind are made: as they are, with their lines sampled, and profiled.

    wanted: the number of profiled ones that the user asked for; None chooses by their time.
    """

    plain_s: float
    sampled_s: float
    profiled_s: float
    wanted: int | None = None

    def num_plain(self, step_s: float) -> int:
        """Steps without a profiler: at least as many as with it."""
        return max(_num_steps_in(self.plain_s, step_s), self.wanted or 0)

    def num_sampled(self, step_s: float) -> int:
        """Steps of which the lines are sampled."""
        return _num_steps_in(self.sampled_s, step_s)

    def num_profiled(self, step_s: float) -> int:
        """Steps under the profiler."""
        most = min(_num_steps_in(self.profiled_s, step_s), _MOST_PROFILED_STEPS)
        return self.wanted or most


def _num_steps_in(seconds: float, step_s: float) -> int:
    return max(LEAST_STEPS, min(_MOST_STEPS, math.ceil(seconds / max(step_s, 1e-6))))


def stretched(times_s: Sequence[float], whole_s: float) -> list[float]:
    """Times of steps by another clock, so that together they are as long as by the host's."""
    sum_s = sum(times_s)
    if not sum_s:
        return [whole_s / len(times_s)] * len(times_s)
    return [one * whole_s / sum_s for one in times_s]
