"""What torch.compile has compiled meanwhile."""

from __future__ import annotations

import sys
from typing import Any


class CompileWatch:
    """Started before steps; says how often torch has compiled since then, and for how long.

    torch's compiler is only asked if something has imported it.
    """

    def __init__(self) -> None:
        self._before = _compiled()

    def per_step(self, num_steps: int) -> tuple[float, float] | None:
        """Times that something was compiled, and seconds of it, in a step; None if never."""
        count, seconds = _compiled()
        if count <= self._before[0]:
            return None
        return (count - self._before[0]) / num_steps, (seconds - self._before[1]) / num_steps


def _compiled() -> tuple[int, float]:
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0, 0.0
    metrics = getattr(dynamo, "compilation_time_metrics", {})
    # Of the whole of it: the others are parts of that one.
    times = metrics.get("_compile.compile_inner") or metrics.get("entire_frame_compile") or []
    return len(times), float(sum(times))
