"""The operators and layers of a step, from the events of profiled steps."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from flatout.engine.profile.kinds import operator_part
from flatout.engine.profile.split import (
    WHOLE_PHASES,
    MeasuredSteps,
    Window,
    corrected_self_s,
    device_part,
    event_cost_s,
    is_own,
    under_compiler,
    under_optimizer,
)
from flatout.engine.profile.trace_event import LAYER, TraceEvent
from flatout.schema.step_profile import OUTSIDE, OperatorTime, Part

OPTIMIZER = "(optimizer)"
# As torch's profiler names them.
_ELEMENT_BYTES = {
    "double": 8, "long int": 8, "long": 8, "c10::BFloat16": 2, "c10::Half": 2, "unsigned char": 1,
    "signed char": 1, "bool": 1, "short int": 2, "short": 2,
}  # fmt: skip
_BACKWARD_SCOPE = "autograd::engine::evaluate_function"


@dataclass(kw_only=True)
class _Row:
    """A row of a table while it is summed up."""

    calls: int = 0
    self_s: float = 0.0
    total_s: float = 0.0
    device_s: float = 0.0
    device_total_s: float = 0.0
    allocated_bytes: int = 0
    flops: float = 0.0
    shapes: Counter[str] = field(default_factory=Counter)
    layers: Counter[str] = field(default_factory=Counter)
    parts: Counter[Part] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)


class TraceTables:
    """The rows of all tables.

    layer_of: of each event, the layer's path. own_s: its own time without the profiler's.
    """

    def __init__(self, events: Sequence[TraceEvent], window: Window, steps: MeasuredSteps) -> None:
        self._events = events
        self._window = window
        self._steps = steps
        self.own_s = corrected_self_s(events, window, steps)
        self._cost_s = event_cost_s(events, window, steps)
        self._is_optimizer = under_optimizer(events)
        self._is_compiling = under_compiler(events)
        self._has_device = any(event.is_device for event in events)
        self.layer_of = layers_of(events, self._is_optimizer)
        self._num_below = _num_below(events)
        self._device_below_s = _device_below(events)
        self._factor = self._host_factor()

    def _host_factor(self) -> float:
        """Plain seconds of a second that is left after the correction: on a CPU, all add up."""
        if self._has_device:
            return 1.0
        length_s = self._window.end_s - self._window.begin_s
        num_events = sum(self._is_counted(event) for event in self._events)
        left_s = length_s - self._cost_s * num_events
        return self._steps.mean_s * self._steps.num_profiled / left_s if left_s > 0 else 1.0

    def _is_counted(self, event: TraceEvent) -> bool:
        is_within = self._window.begin_s <= event.start_s < self._window.end_s
        return is_within and not event.is_device and not is_own(event)

    def operators(self) -> tuple[OperatorTime, ...]:
        """A row for each operator and annotation, the largest own time first."""
        rows: dict[str, _Row] = defaultdict(_Row)
        for number, event in enumerate(self._events):
            if not self._is_counted(event) or event.name.startswith(LAYER):
                continue
            row = rows[event.name]
            self._add(row, number)
            row.shapes[event.shapes] += 1
            row.layers[self.layer_of[number]] += 1
        return self._finished(rows, has_layers=True)

    def layers(self) -> tuple[OperatorTime, ...]:
        """A row for each layer, with its backward pass; `calls` are forward passes."""
        rows: dict[str, _Row] = defaultdict(_Row)
        for number, event in enumerate(self._events):
            if not self._is_counted(event):
                continue
            name = self.layer_of[number]
            row = rows[name]
            self._add(row, number)
            # Operators are no calls of the layer.
            row.calls -= event.name != LAYER + name
            if event.shapes and not row.shapes and not event.is_backward:
                row.shapes[event.shapes] += 1
        if set(rows) <= {OUTSIDE, OPTIMIZER}:
            return ()
        self._add_totals(rows)
        return self._finished(rows, has_layers=False)

    def _add(self, row: _Row, number: int) -> None:
        event = self._events[number]
        row.calls += 1
        row.self_s += self.own_s[number]
        row.total_s += max(0.0, event.took_s - self._cost_s * self._num_below[number])
        row.device_s += event.kernels_s
        row.device_total_s += self._device_below_s[number]
        row.allocated_bytes += event.allocated_bytes
        row.flops += event.flops
        part: Part = "host" if self._is_compiling[number] else operator_part(event.name)
        if part != "host" and self._is_optimizer[number]:
            part = "optimizer"
        row.parts[part] += 1
        if event.dtype:
            row.dtypes[event.dtype] += 1

    def _add_totals(self, rows: dict[str, _Row]) -> None:
        """Of layers, the total is their own and that of the layers below them."""
        for name, row in rows.items():
            below = [one for other, one in rows.items() if other.startswith(f"{name}.")]
            row.total_s = row.self_s + sum(one.self_s for one in below)
            row.device_total_s = row.device_s + sum(one.device_s for one in below)

    def _finished(self, rows: dict[str, _Row], *, has_layers: bool) -> tuple[OperatorTime, ...]:
        count, factor = self._steps.num_profiled, self._factor
        found = [
            OperatorTime(
                name=name,
                calls=row.calls / count,
                self_s=row.self_s / count * factor,
                total_s=row.total_s / count * factor,
                device_s=row.device_s / count if self._has_device else None,
                device_total_s=row.device_total_s / count if self._has_device else None,
                shapes=_most(row.shapes),
                layer=_most(row.layers) if has_layers else "",
                part=row.parts.most_common(1)[0][0] if has_layers else None,
                allocated_bytes=round(row.allocated_bytes / count),
                flops=row.flops / count if row.flops else None,
                dtype=_most(row.dtypes),
            )
            for name, row in rows.items()
        ]
        return tuple(sorted(found, key=_own_time, reverse=True))

    def num_operators(self) -> float:
        """Operators that do something themselves, in a step; not those of the optimizer."""
        own = [
            event
            for number, event in enumerate(self._events)
            if self._is_counted(event)
            and not self._is_optimizer[number]
            and not self._is_compiling[number]
            and self._window.phase_at(event.start_s) not in WHOLE_PHASES
            and "::" in event.name
            and operator_part(event.name) != "host"
        ]
        return len(own) / self._steps.num_profiled

    def memory_bytes(self) -> float:
        """Bytes that memory-bound operators read and write in a step, at least.

        Their inputs, and once more the largest of them as a result.
        """
        total = 0
        for number, event in enumerate(self._events):
            is_memory = self._is_counted(event) and operator_part(event.name) == "memory"
            if is_memory and not self._is_optimizer[number] and not self._is_compiling[number]:
                total += moved_bytes(event.shapes, event.dtype)
        return total / self._steps.num_profiled

    def kernels(self) -> tuple[OperatorTime, ...]:
        """A row for each kernel of a GPU, the longest first."""
        rows: dict[str, _Row] = defaultdict(_Row)
        for event in self._events:
            is_within = self._window.begin_s <= event.start_s < self._window.end_s
            if not event.is_device or event.is_annotation or not is_within:
                continue
            row = rows[event.name]
            row.calls += 1
            row.device_s += event.took_s
            row.device_total_s += event.took_s
            row.parts[device_part(event, self._events, self._is_optimizer)] += 1
            if event.launched_by is not None:
                row.layers[self.layer_of[event.launched_by]] += 1
        return self._finished(rows, has_layers=True)


def _own_time(row: OperatorTime) -> float:
    return row.self_s if row.device_s is None else row.device_s


def _most(counts: Counter[str]) -> str:
    return counts.most_common(1)[0][0] if counts else ""


def moved_bytes(shapes: str, dtype: str) -> int:
    """Bytes of tensors of these shapes, and of a result as large as the largest of them."""
    sizes = [math.prod(map(int, shape.split("x"))) for shape in shapes.split()]
    return (sum(sizes) + max(sizes, default=0)) * _ELEMENT_BYTES.get(dtype, 4)


def layers_of(events: Sequence[TraceEvent], is_optimizer: Sequence[bool]) -> list[str]:
    """Of each event, the layer that it belongs to: a backward pass to that of the forward one."""
    found: list[str] = []
    by_sequence: dict[int, str] = {}
    for number, event in enumerate(events):
        above = found[event.parent] if event.parent is not None else OUTSIDE
        if event.name.startswith(LAYER):
            above = event.name.removeprefix(LAYER)
        elif is_optimizer[number]:
            above = OPTIMIZER
        elif event.name.startswith(_BACKWARD_SCOPE):
            above = by_sequence.get(event.sequence, OUTSIDE)
        elif event.sequence >= 0 and not event.is_backward:
            by_sequence[event.sequence] = above
        found.append(above)
    return found


def _num_below(events: Sequence[TraceEvent]) -> list[int]:
    counts = [0] * len(events)
    for event in reversed(events):
        number = event.parent
        if number is not None and not event.is_device:
            counts[number] += 1
    # Children come after their parents, so one pass from the end sums up all of them.
    below = counts[:]
    for index in range(len(events) - 1, -1, -1):
        parent = events[index].parent
        if parent is not None and not events[index].is_device:
            below[parent] += below[index]
    return below


def _device_below(events: Sequence[TraceEvent]) -> list[float]:
    totals = [event.kernels_s for event in events]
    for index in range(len(events) - 1, -1, -1):
        parent = events[index].parent
        if parent is not None and not events[index].is_device:
            totals[parent] += totals[index]
    return totals
