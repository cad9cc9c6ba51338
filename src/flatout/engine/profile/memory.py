"""What holds memory at the peak of a step, from the allocations that torch.profiler records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.engine.profile.trace_event import LAYER, MARK
from flatout.schema.step_profile import Held, MemoryUse

_MOST_POINTS = 240
_MOST_HOLDERS = 12
OTHERS = "other tensors"


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Memory that is taken, or with a negative size given back.

    address: the same for both. holder: the layer or operator that has taken it. is_device: not of
    the computer's own memory.
    """

    at_s: float
    address: int
    num_bytes: int
    holder: str
    is_device: bool = False


def memory_use(profiler: Any, base: Mapping[str, int]) -> MemoryUse:
    """Memory in the last profiled step.

    Args:
        profiler: a finished torch.profiler.profile, with `profile_memory`.
        base: what is held all the time, by name (`weights`, `optimizer`).
    """
    try:
        roots = profiler.profiler.kineto_results.experimental_event_tree()
        allocations, marks = _read(roots)
    # The tree of events is not a public part of torch.
    except (AttributeError, RuntimeError, TypeError) as error:
        return MemoryUse(reason=f"this torch does not list allocations: {error}")
    if len(marks) < 2:
        return MemoryUse(reason="no step was marked")
    begin_s, end_s = last_step(marks)
    return peak_use(of_device(allocations), base, begin_s, end_s)


def of_device(allocations: Sequence[Allocation]) -> Sequence[Allocation]:
    """Those on the GPU, if there are any: batches in the computer's memory are not part of it."""
    return [one for one in allocations if one.is_device] or allocations


def last_step(marks: Sequence[tuple[float, str]]) -> tuple[float, float]:
    """From the end of the step before the last to the end of the last: the last mark's name."""
    name = marks[-1][1]
    ends = [at_s for at_s, own in marks if own == name]
    return (ends[-2] if len(ends) > 1 else marks[0][0]), ends[-1]


def peak_use(
    allocations: Iterable[Allocation], base: Mapping[str, int], begin_s: float, end_s: float
) -> MemoryUse:
    """The memory between two moments, and what holds it at its peak.

    Args:
        allocations: in order, from before `begin_s` on.
        base: what is held all the time, by name.
        begin_s: start of the step.
        end_s: its end.
    """
    held: dict[int, tuple[int, str]] = {}
    base_bytes, known_bytes = sum(base.values()), 0
    points: list[tuple[float, int]] = []
    peak_bytes, at_peak = -1, {}
    for one in allocations:
        if one.at_s > end_s:
            break
        if one.num_bytes > 0:
            held[one.address] = (one.num_bytes, one.holder)
            known_bytes += one.num_bytes
        elif one.address in held:
            # What was there before the trace began is part of the base, or unknown.
            known_bytes -= held.pop(one.address)[0]
        if one.at_s < begin_s:
            continue
        now_bytes = base_bytes + known_bytes
        points.append((one.at_s - begin_s, now_bytes))
        if now_bytes > peak_bytes:
            peak_bytes, at_peak = now_bytes, dict(held)
    if not points:
        return MemoryUse(reason="the step has allocated nothing")
    holders: dict[str, int] = defaultdict(int, base)
    for num_bytes, holder in at_peak.values():
        holders[holder] += num_bytes
    return MemoryUse(
        peak_bytes=peak_bytes,
        timeline=tuple(_thinned(points)),
        at_peak=tuple(_largest(holders)),
    )


def _largest(holders: Mapping[str, int]) -> Iterator[Held]:
    """The largest holders, and the rest of them as one."""
    ordered = sorted(holders.items(), key=lambda item: item[1], reverse=True)
    for name, num_bytes in ordered[:_MOST_HOLDERS]:
        yield Held(name=name, num_bytes=num_bytes)
    rest = sum(num_bytes for _, num_bytes in ordered[_MOST_HOLDERS:])
    if rest:
        yield Held(name=OTHERS, num_bytes=rest)


def _thinned(points: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """At most so many points, each the highest of those that it stands for."""
    size = -(-len(points) // _MOST_POINTS)
    for start in range(0, len(points), size):
        yield max(points[start : start + size], key=lambda point: point[1])


def _read(roots: Iterable[Any]) -> tuple[list[Allocation], list[tuple[float, str]]]:
    """All allocations in order, and the marks with their names."""
    reader = _TreeReader()
    for root in sorted(roots, key=lambda event: event.start_time_ns):
        reader.read(root)
    reader.allocations.sort(key=lambda one: one.at_s)
    reader.marks.sort()
    return reader.allocations, reader.marks


class _TreeReader:
    """Goes through the tree of events, parents first."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.marks: list[tuple[float, str]] = []
        self._by_sequence: dict[int, str] = {}

    def read(self, root: Any) -> None:
        """Takes what is in it. (Not recursive: a tree may be deeper than Python's stack.)"""
        waiting = [(root, "", "")]
        while waiting:
            event, layer, operator = waiting.pop()
            kind = str(event.tag).rpartition(".")[2]
            if kind == "Allocation":
                self._allocated(event, layer or operator)
                continue
            name = event.name
            if name.startswith(MARK):
                self.marks.append((event.start_time_ns / 1e9, name.removeprefix(MARK)))
            elif name.startswith(LAYER):
                layer = f"layer {name.removeprefix(LAYER)}"
            elif name.startswith("Optimizer."):
                layer = "optimizer"
            elif kind == "TorchOp":
                layer = self._layer(event, layer)
                operator = operator or name
            children = sorted(event.children, key=lambda child: child.start_time_ns)
            waiting += [(child, layer, operator) for child in reversed(children)]

    def _layer(self, event: Any, layer: str) -> str:
        """That of the forward pass, of an operator of the backward pass."""
        number = event.extra_fields.sequence_number
        if number < 0:
            return layer
        if event.name.startswith("autograd::engine::evaluate_function"):
            forward = self._by_sequence.get(number, "")
            return f"{forward} (backward)" if forward else layer
        if layer and not layer.endswith("(backward)"):
            self._by_sequence[number] = layer
        return layer

    def _allocated(self, event: Any, holder: str) -> None:
        fields = event.extra_fields
        self.allocations.append(
            Allocation(
                at_s=event.start_time_ns / 1e9,
                address=fields.ptr,
                num_bytes=fields.alloc_size,
                holder=holder or OTHERS,
                is_device=fields.device.type != "cpu",
            )
        )
