"""Reports of `flatout profile`, made by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.schema.step_profile import (
    LineTime,
    OperatorProbe,
    Part,
    SplitPart,
    StepProfile,
    StepTraits,
)
from flatout.schema.tuning import Interval

MS = 1e-3


def report(parts: dict[Part, float] | None = None, **changes: Any) -> StepProfile:
    """A step of 10 ms on a CPU, with the traits of an ordinary training."""
    split = parts or {"matrix": 8 * MS, "host": 1 * MS, "optimizer": 1 * MS}
    made = StepProfile(
        flatout="0.1.0",
        subject="test",
        at="2026-01-01T00:00:00Z",
        torch="2.11.0",
        device="cpu",
        step_s=(10 * MS, 10 * MS),
        profiled_step_s=12 * MS,
        num_profiled=5,
        overhead=1.2,
        samples_per_step=64,
        samples_per_s=6400,
        split=tuple(SplitPart(part=part, seconds=seconds) for part, seconds in split.items()),
        phases_s={"forward": 4 * MS, "backward": 5 * MS, "optimizer": 1 * MS},
        traits=StepTraits(batch_size=64, data_kind="tensors", num_cores=2, num_operators=30),
        recipe={"micro_batch_size": 64, "precision": "fp32", "compiled": "off"},
    )
    return msgspec.structs.replace(made, **changes)


def probe(advice: str, ratio: float, affected_ms: float = 9, **others: Any) -> OperatorProbe:
    """A probe that has found this ratio of times."""
    interval = Interval(middle=ratio, low=0.95 * ratio, high=1.05 * ratio)
    return OperatorProbe(advice=advice, affected_s=affected_ms * MS, ratio=interval, **others)


def line(text: str, milliseconds: float, number: int = 1, **others: Any) -> LineTime:
    return LineTime(
        file="train.py",
        line=number,
        function="loss",
        seconds=milliseconds * MS,
        text=text,
        **others,
    )
