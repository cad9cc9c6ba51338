"""Where the time of a step goes, from the events of profiled steps and the times of plain ones."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flatout.engine.profile.kinds import is_sync, kernel_part, operator_part
from flatout.engine.profile.trace_event import BEGIN, MARK, TraceEvent
from flatout.schema.step_profile import PARTS, Part, SplitPart

ON_CPU = "on a CPU, the host is the device"
# Phases of a step whose name says what their time is.
WHOLE_PHASES: dict[str, Part] = {
    "data": "data", "copy": "copy", "exchange": "communication", "optimizer": "optimizer",
}  # fmt: skip
_OPTIMIZER_SCOPES = ("Optimizer.step", "Optimizer.zero_grad")
# torch.compile at work: operators in it are called with tensors that have no data.
_COMPILING = " (dynamo_timed)"


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Times of steps.

    step_s: each without a profiler. profiled_s: mean with it, of num_profiled. phases_s: seconds
    of each marked part in a plain step; empty where they were not measured.
    """

    step_s: tuple[float, ...]
    profiled_s: float
    num_profiled: int
    phases_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean_s(self) -> float:
        """Seconds of a plain step."""
        return sum(self.step_s) / len(self.step_s)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The profiled steps in a trace: from their first mark to their last.

    phases: (begin, end, name) of each part, in order. thread: that makes the steps.
    """

    begin_s: float
    end_s: float
    thread: int
    phases: tuple[tuple[float, float, str], ...]

    def phase_at(self, moment_s: float) -> str:
        """The name of the part at that moment."""
        number = bisect.bisect_right(self.phases, moment_s, key=lambda phase: phase[0]) - 1
        return self.phases[max(0, number)][2]


def window_of(events: Sequence[TraceEvent]) -> Window:
    """The profiled steps of a trace, by its marks.

    Raises:
        ValueError: it has none.
    """
    marks = [event for event in events if event.name.startswith(MARK) and not event.is_device]
    names = [event.name.removeprefix(MARK) for event in marks]
    if len(marks) < 2 or BEGIN not in names:
        raise ValueError("the trace has no marked steps")
    first = names.index(BEGIN)
    phases = tuple(
        (before.start_s, after.start_s, name)
        for before, after, name in zip(
            marks[first:], marks[first + 1 :], names[first + 1 :], strict=False
        )
    )
    return Window(
        begin_s=marks[first].start_s,
        end_s=marks[-1].start_s,
        thread=marks[first].thread,
        phases=phases,
    )


def is_own(event: TraceEvent) -> bool:
    """Whether flatout has put an event there for itself."""
    return event.name.startswith(MARK)


def self_seconds(events: Sequence[TraceEvent]) -> list[float]:
    """Of each event, its time less that of the events that are part of it."""
    own = [event.took_s for event in events]
    for event in events:
        if event.parent is not None and not event.is_device:
            own[event.parent] -= event.took_s
    return [max(0.0, seconds) for seconds in own]


def split_of(
    events: Sequence[TraceEvent], window: Window, steps: MeasuredSteps
) -> tuple[SplitPart, ...]:
    """The parts of a plain step; all of them together are its mean time."""
    if any(event.is_device for event in events):
        return _of_device(events, window, steps)
    return _of_cpu(events, window, steps)


def _of_cpu(
    events: Sequence[TraceEvent], window: Window, steps: MeasuredSteps
) -> tuple[SplitPart, ...]:
    corrected = without_profiler(events, window, steps)
    lengths: dict[str, float] = defaultdict(float)
    for begin_s, end_s, name in window.phases:
        lengths[name] += end_s - begin_s
    by_phase = {name: _within(corrected, name, lengths[name], steps) for name in lengths}
    return _parts(_scaled(by_phase, lengths, steps), is_cpu=True)


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """Events of the window, with their own time without what the profiler costs.

    events: (phase, part, seconds). num_events: in each phase, those at the top. top_s: their time.
    event_cost_s: of recording one event.
    """

    events: tuple[tuple[str, Part, float], ...]
    top_s: Mapping[str, float]
    num_top: Mapping[str, int]
    event_cost_s: float


def event_cost_s(events: Sequence[TraceEvent], window: Window, steps: MeasuredSteps) -> float:
    """What recording one event takes, if all of the difference to plain steps is that."""
    num_events = sum(_is_counted(event, window) for event in events)
    extra_s = max(0.0, steps.profiled_s - steps.mean_s) * steps.num_profiled
    return extra_s / num_events if num_events else 0.0


def corrected_self_s(
    events: Sequence[TraceEvent], window: Window, steps: MeasuredSteps
) -> list[float]:
    """Of each event, its own time without what recording its children costs: that is in it."""
    own, cost_s = self_seconds(events), event_cost_s(events, window, steps)
    num_children = [0] * len(events)
    for event in events:
        if event.parent is not None and not event.is_device:
            num_children[event.parent] += 1
    return [
        max(0.0, seconds - cost_s * children)
        for seconds, children in zip(own, num_children, strict=True)
    ]


def without_profiler(
    events: Sequence[TraceEvent], window: Window, steps: MeasuredSteps
) -> Corrected:
    """The events of the window's thread, corrected, with the parts of a step that they are."""
    own = corrected_self_s(events, window, steps)
    is_optimizer, is_compiling = under_optimizer(events), under_compiler(events)
    found: list[tuple[str, Part, float]] = []
    top_s: dict[str, float] = defaultdict(float)
    num_top: dict[str, int] = defaultdict(int)
    for number, event in enumerate(events):
        if not _is_counted(event, window) or event.thread != window.thread:
            continue
        phase = window.phase_at(event.start_s)
        part: Part = "host" if is_compiling[number] else operator_part(event.name)
        part = "optimizer" if is_optimizer[number] else part
        found.append((phase, part, own[number]))
        if event.parent is None:
            top_s[phase] += event.took_s
            num_top[phase] += 1
    cost_s = event_cost_s(events, window, steps)
    return Corrected(events=tuple(found), top_s=top_s, num_top=num_top, event_cost_s=cost_s)


def under_optimizer(events: Sequence[TraceEvent]) -> list[bool]:
    """Of each event, whether it is part of an optimizer's step, as torch itself notes that."""
    return _under(events, lambda name: name.startswith(_OPTIMIZER_SCOPES))


def under_compiler(events: Sequence[TraceEvent]) -> list[bool]:
    """Of each event, whether it is part of torch.compile's own work."""
    return _under(events, lambda name: name.endswith(_COMPILING))


def _under(events: Sequence[TraceEvent], is_scope: Callable[[str], bool]) -> list[bool]:
    found: list[bool] = []
    for event in events:
        above = event.parent is not None and event.parent < len(found) and found[event.parent]
        found.append(above or is_scope(event.name))
    return found


def _is_counted(event: TraceEvent, window: Window) -> bool:
    is_within = window.begin_s <= event.start_s < window.end_s
    return is_within and not event.is_device and not is_own(event)


def _within(
    corrected: Corrected, phase: str, length_s: float, steps: MeasuredSteps
) -> dict[Part, float]:
    """The parts of one phase, of all profiled steps together."""
    if phase in WHOLE_PHASES:
        return {WHOLE_PHASES[phase]: length_s}
    parts: dict[Part, float] = defaultdict(float)
    for name, part, seconds in corrected.events:
        if name == phase:
            parts[part] += seconds
    outside_s = length_s - corrected.top_s.get(phase, 0.0)
    cost_s = corrected.event_cost_s * corrected.num_top.get(phase, 0)
    parts["host"] += max(0.0, outside_s - cost_s)
    return parts


def _scaled(
    by_phase: Mapping[str, Mapping[Part, float]],
    lengths: Mapping[str, float],
    steps: MeasuredSteps,
) -> dict[Part, float]:
    """Seconds of a plain step: each phase as long as it is there, all of them as long as it is."""
    total: dict[Part, float] = defaultdict(float)
    for phase, parts in by_phase.items():
        whole_s = sum(parts.values())
        plain_s = steps.phases_s.get(phase, whole_s / steps.num_profiled)
        for part, seconds in parts.items():
            total[part] += seconds / whole_s * plain_s if whole_s else 0.0
    sum_s = sum(total.values())
    factor = steps.mean_s / sum_s if sum_s else 0.0
    return {part: seconds * factor for part, seconds in total.items()}


def _parts(seconds: Mapping[Part, float], *, is_cpu: bool) -> tuple[SplitPart, ...]:
    absent = ("launch", "idle") if is_cpu else ()
    return tuple(
        SplitPart(part=part, seconds=None, reason=ON_CPU)
        if part in absent
        else SplitPart(part=part, seconds=seconds.get(part, 0.0))
        for part in PARTS
    )


def _of_device(
    events: Sequence[TraceEvent], window: Window, steps: MeasuredSteps
) -> tuple[SplitPart, ...]:
    """By what the device does, and, where it does nothing, by what the host does meanwhile."""
    busy = _busy(events, window)
    host = _HostStates(events, window)
    seconds: dict[Part, float] = defaultdict(float)
    gaps: dict[Part, float] = defaultdict(float)
    at_s = window.begin_s
    for begin_s, end_s, part in [*busy, (window.end_s, window.end_s, "idle")]:
        if begin_s > at_s:
            for gap_part, gap_s in host.states(at_s, begin_s):
                gaps[gap_part] += gap_s
        seconds[part] += end_s - begin_s
        at_s = max(at_s, end_s)
    return _parts(_fitted(seconds, gaps, steps), is_cpu=False)


def _fitted(
    busy: Mapping[Part, float], gaps: Mapping[Part, float], steps: MeasuredSteps
) -> dict[Part, float]:
    """Seconds of a plain step: kernels are as long under a profiler, gaps are longer."""
    count = steps.num_profiled
    busy_s, gaps_s = sum(busy.values()) / count, sum(gaps.values()) / count
    busy_factor = min(1.0, steps.mean_s / busy_s) if busy_s else 0.0
    left_s = steps.mean_s - busy_s * busy_factor
    gap_factor = left_s / gaps_s if gaps_s else 0.0
    total: dict[Part, float] = defaultdict(float)
    for part, seconds in busy.items():
        total[part] += seconds / count * busy_factor
    for part, seconds in gaps.items():
        total[part] += seconds / count * gap_factor
    if not gaps_s:
        total["idle"] += left_s
    return total


# What runs at the same time counts as the first of these that is there.
_PRIORITY: tuple[Part, ...] = (
    "matrix", "convolution", "optimizer", "memory", "communication", "copy",
)  # fmt: skip


def _busy(events: Sequence[TraceEvent], window: Window) -> list[tuple[float, float, Part]]:
    """When the device does something, without overlaps, in order."""
    is_optimizer = under_optimizer(events)
    changes: list[tuple[float, int, Part]] = []
    for event in events:
        if not event.is_device or event.is_annotation:
            continue
        begin_s, end_s = max(event.start_s, window.begin_s), min(event.end_s, window.end_s)
        if end_s <= begin_s:
            continue
        part = device_part(event, events, is_optimizer)
        changes += [(begin_s, 1, part), (end_s, -1, part)]
    changes.sort(key=lambda change: (change[0], change[1]))
    running: dict[Part, int] = defaultdict(int)
    found: list[tuple[float, float, Part]] = []
    last_s = window.begin_s
    for moment_s, change, part in changes:
        now = next((one for one in _PRIORITY if running[one] > 0), None)
        if now is not None and moment_s > last_s:
            found.append((last_s, moment_s, now))
        running[part] += change
        last_s = moment_s
    return found


def device_part(
    event: TraceEvent, events: Sequence[TraceEvent], is_optimizer: Sequence[bool]
) -> Part:
    """The part of a step that a kernel is."""
    number = event.launched_by
    if number is not None and is_optimizer[number] and not event.name.startswith("Memcpy HtoD"):
        return "optimizer"
    return kernel_part(event.name, events[number].name if number is not None else None)


class _HostStates:
    """What the host does at a moment: waits for data or the device, starts work, or else."""

    def __init__(self, events: Sequence[TraceEvent], window: Window) -> None:
        own = [event for event in events if _is_counted(event, window)]
        self._window = window
        self._syncs = _union((e.start_s, e.end_s) for e in own if is_sync(e.name))
        self._calls = _union(
            (e.start_s, e.end_s) for e in own if "::" in e.name or e.name.startswith(("cuda", "cu"))
        )

    def states(self, begin_s: float, end_s: float) -> list[tuple[Part, float]]:
        """The parts of a gap on the device, with their lengths."""
        found: list[tuple[Part, float]] = []
        for phase_begin_s, phase_end_s, name in _overlapping(self._window.phases, begin_s, end_s):
            low_s, high_s = max(begin_s, phase_begin_s), min(end_s, phase_end_s)
            length_s = high_s - low_s
            if name == "data":
                found.append(("data", length_s))
                continue
            waiting_s = _covered(self._syncs, low_s, high_s)
            calling_s = max(0.0, _covered(self._calls, low_s, high_s) - waiting_s)
            found += [
                ("sync", waiting_s),
                ("launch", calling_s),
                ("host", max(0.0, length_s - waiting_s - calling_s)),
            ]
        return found


def _overlapping(
    phases: Sequence[tuple[float, float, str]], begin_s: float, end_s: float
) -> Iterable[tuple[float, float, str]]:
    number = max(0, bisect.bisect_right(phases, begin_s, key=lambda phase: phase[0]) - 1)
    while number < len(phases) and phases[number][0] < end_s:
        yield phases[number]
        number += 1


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals in order, those that touch joined."""
    joined: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(intervals):
        if joined and begin_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((begin_s, end_s))
    return joined


def _covered(intervals: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """How much of a time they cover."""
    number = max(0, bisect.bisect_right(intervals, begin_s, key=lambda one: one[0]) - 1)
    covered_s = 0.0
    while number < len(intervals) and intervals[number][0] < end_s:
        low_s, high_s = intervals[number]
        covered_s += max(0.0, min(high_s, end_s) - max(low_s, begin_s))
        number += 1
    return covered_s
