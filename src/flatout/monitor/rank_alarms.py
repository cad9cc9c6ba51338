"""The rank that the others wait for."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.monitor.run_state import RunState
from flatout.schema.finding import Finding, Fix
from flatout.schema.units import percent_text

_WINDOW_S = 20.0
# The others spend at least this share of their steps in exchanges, and the slow one at most half.
_WAITING = 0.3
_SLOWER = 1.3
_EXCHANGE = "exchange"
# Of all ranks, only the first one has these, or they say nothing about a step.
_NOT_COMPARED = ("validation", "checkpoint", "other")


def straggling_rank(state: RunState) -> Finding | None:
    """Names a rank that is slower than all others for 20 s; None where there is none."""
    started = state.started
    if started is None or started.num_ranks < 2 or len(state.splits) < started.num_ranks:
        return None
    halves = [_times(state, part) for part in (0, 1)]
    names = {_slowest(times) for times in halves}
    slow = names.pop() if len(names) == 1 else None
    if slow is None:
        return None
    times = halves[1]
    waiting = min(_exchange_share(part) for rank, part in times.items() if rank != slow)
    own = {name: seconds for name, seconds in times[slow].items() if name != _EXCHANGE}
    longest = max(own, key=lambda name: own[name])
    return Finding(
        rule="rank-straggling",
        severity="warning",
        problem=f"rank {slow} is slower than the other ranks, which wait for it.",
        because="every update ends when the slowest rank has finished it",
        evidence=(
            f"other ranks wait for {percent_text(waiting, 0)} of their steps or more; "
            f"rank {slow}: {percent_text(_exchange_share(times[slow]), 0)}",
            f"rank {slow} spends most of its time on: {longest}",
        ),
        fixes=(
            Fix(text=f"look at the machine of rank {slow}: other programs, heat, a slower card or "
                     "disk"),
            Fix(text=f"its output is in worker.rank{slow}.log" if slow else
                     "its output is in worker.log"),
        ),
    )  # fmt: skip


def _times(state: RunState, part: int) -> dict[int, dict[str, float]]:
    """By rank, the seconds in each part of steps over one half of the last 20 s."""
    newest = min((points[-1][0] for points in state.splits.values() if points), default=0.0)
    end = newest if part else newest - _WINDOW_S / 2
    times = {}
    for rank, points in state.splits.items():
        before = [split for at, split in points if at <= end - _WINDOW_S / 2]
        after = [split for at, split in points if at <= end]
        if not before or not after:
            return {}
        first, last = before[-1], after[-1]
        times[rank] = {
            name: last[name] - first.get(name, 0.0) for name in last if name not in _NOT_COMPARED
        }
    return times


def _exchange_share(times: Mapping[str, float]) -> float:
    total = sum(times.values())
    return times.get(_EXCHANGE, 0.0) / total if total > 0 else 0.0


def _own_s(times: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in times.items() if name != _EXCHANGE)


def _slowest(times: Mapping[int, Mapping[str, float]]) -> int | None:
    if len(times) < 2:
        return None
    slow = max(times, key=lambda rank: _own_s(times[rank]))
    others = [part for rank, part in times.items() if rank != slow]
    waiting = min(map(_exchange_share, others))
    if waiting < _WAITING or _exchange_share(times[slow]) > waiting / 2:
        return None
    return slow if _own_s(times[slow]) >= _SLOWER * max(map(_own_s, others)) else None
