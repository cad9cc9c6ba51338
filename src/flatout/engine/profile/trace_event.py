"""An event of a trace as plain data, and the names of those that flatout records itself."""

from __future__ import annotations

from dataclasses import dataclass

# What flatout records itself: the end of a part of a step, and a layer's forward pass.
MARK, LAYER = "flatout.mark:", "flatout.layer:"
# The mark with which the profiled steps begin.
BEGIN = "begin"


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEvent:
    """An operator, an annotation, a call of CUDA, or a kernel.

    start_s, end_s: since the trace began. parent: index of the event that it is part of.
    launched_by: of a kernel, the index of the operator that has started it, if that is known.
    sequence: joins an operator with its backward pass; -1 if it has none. kernels_s: of all that
    it has started itself. allocated_bytes: without those of its children.
    """

    name: str
    start_s: float
    end_s: float
    thread: int = 0
    parent: int | None = None
    is_device: bool = False
    is_annotation: bool = False
    is_backward: bool = False
    launched_by: int | None = None
    sequence: int = -1
    kernels_s: float = 0.0
    shapes: str = ""
    dtype: str = ""
    allocated_bytes: int = 0
    flops: float = 0.0

    @property
    def took_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s
