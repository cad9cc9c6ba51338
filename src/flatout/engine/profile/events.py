"""From the events of profiled steps to what a report says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flatout.engine.profile.kinds import is_pageable_copy, is_sync
from flatout.engine.profile.split import MeasuredSteps, split_of, under_compiler, window_of
from flatout.engine.profile.tables import TraceTables
from flatout.engine.profile.trace_event import TraceEvent
from flatout.schema.step_profile import OperatorTime, SplitPart


@dataclass(frozen=True, kw_only=True)
class TraceReport:
    """What the events of a trace say of a step; see StepProfile, StepTraits and RoofUse.

    memory_bytes: that memory-bound operators read and write, at least.
    """

    split: tuple[SplitPart, ...]
    operators: tuple[OperatorTime, ...]
    layers: tuple[OperatorTime, ...]
    kernels: tuple[OperatorTime, ...]
    num_operators: float
    num_syncs: float
    pageable_copy_s: float | None
    memory_bytes: float


def profile_report(events: Sequence[TraceEvent], steps: MeasuredSteps) -> TraceReport:
    """The split of a plain step and the tables of its operators and layers.

    Args:
        events: `trace_events(profiler)`, with marks: `mark(BEGIN)` before the first step, then
            `mark(part)` at the end of each part, by the thread that makes the steps. A script of
            which only whole steps are known marks each step's end as `step`.
        steps: times of steps without the profiler, and how many were profiled.

    Raises:
        ValueError: there are no marks.
    """
    window = window_of(events)
    tables = TraceTables(events, window, steps)
    within = [event for event in events if window.begin_s <= event.start_s < window.end_s]
    copies_s = sum(event.took_s for event in within if is_pageable_copy(event.name))
    has_device = any(event.is_device for event in events)
    syncs = sum(
        is_sync(event.name) and not is_compiling and not _is_in_sync(event, events)
        for event, is_compiling in zip(events, under_compiler(events), strict=True)
        if window.begin_s <= event.start_s < window.end_s
    )
    return TraceReport(
        split=split_of(events, window, steps),
        operators=tables.operators(),
        layers=tables.layers(),
        kernels=tables.kernels() if has_device else (),
        num_operators=tables.num_operators(),
        num_syncs=syncs / steps.num_profiled,
        pageable_copy_s=copies_s / steps.num_profiled if has_device else None,
        memory_bytes=tables.memory_bytes(),
    )


def _is_in_sync(event: TraceEvent, events: Sequence[TraceEvent]) -> bool:
    """Whether it is part of a synchronization: `is_nonzero` calls `item`, which calls CUDA."""
    parent = event.parent
    while parent is not None:
        if is_sync(events[parent].name):
            return True
        parent = events[parent].parent
    return False
