"""Recipe changes during a training: out of memory, failed compilation, uncacheable samples."""

from __future__ import annotations

from typing import Literal

import msgspec

AdaptationKind = Literal["smaller", "larger", "recomputed", "uncaptured", "uncompiled", "uncached"]
Part = Literal[
    "data", "forward", "backward", "optimizer", "capture", "validation", "checkpoint", "other",
    "pace", "process",
]  # fmt: skip


class OomAdaptation(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for a new recipe in the middle of a training.

    kind: `smaller` or `larger` micro-batches, activations `recomputed` in the backward pass, the
        step `uncaptured`, made without a CUDA graph, which needs memory of its own, or
        `uncompiled`, since compiling failed; or the data `uncached`, since it cannot be kept.
    step: the update that memory did not be enough for, or that could not be compiled, counted from
        1; of what is larger, and of data, the first.
    part: what was being done. `pace`: nothing was refused, but the driver has moved memory, and
        training has become slow; `process`: the kernel ended the process. None of what is larger,
        uncompiled or uncached.
    before, after: samples in a micro-batch.
    is_in_place: the same batch was repeated; otherwise the run went back to its last checkpoint.
    because: what was said or seen.
    not_split: why micro-batches are not smaller instead, if that was requested. Smaller ones were
        found to compute the same.
    """

    kind: AdaptationKind
    step: int
    before: int
    after: int
    part: Part | None = None
    is_in_place: bool = True
    because: str | None = None
    not_split: str | None = None
