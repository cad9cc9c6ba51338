"""What limits a row, by its id; and where a difference between files comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import median

from flatout.bench.statistics import mean_ratio
from flatout.schema.bench import BenchRow
from flatout.schema.bench_comparison import (
    ComparedFile,
    ComparedRow,
    Group,
    GroupChange,
    LoadedBench,
    StepPart,
)

# By the second part of an id, such as `limits/matmul/bf16`.
_GROUPS: dict[str, Group] = {
    "matmul": "compute", "conv": "compute", "memory": "memory", "all-reduce": "communication",
    "to-device": "copies", "to-host": "copies", "pinned": "copies", "copy": "copies",
    "launch": "launch latency", "graph": "launch latency", "loader": "data path",
    "data": "data path", "dataloader": "data path", "disk": "disk", "process": "process start",
    "python": "process start", "import": "process start",
}  # fmt: skip
_HOST_PART = "launch latency and host"
# Ends of ids of shares of a step, with what they are a share of its time for.
_SHARES = {
    "data_wait": "data path", "data_wait_share": "data path",
    "host_share": _HOST_PART,
}  # fmt: skip
_STEPS = ("step_s", "step_time", "step_time_s")
# A smaller difference of a step is not divided into parts.
_LEAST_STEP_DIFFERENCE = 0.02


def group_of(id: str) -> Group:
    """What a row belongs to; rows of workloads are training."""
    kind, _, rest = id.partition("/")
    first = re.split(r"[/ ]", rest)[0].lower().replace("_", "-")
    return "training" if kind in ("run", "frameworks") else _GROUPS.get(first, "other")


def group_changes(
    rows: Sequence[ComparedRow], files: Sequence[ComparedFile]
) -> Iterator[GroupChange]:
    """By file and group: the mean of the ratios, and the rows at the ends."""
    for place, file in enumerate(files[1:], 1):
        by_group: dict[Group, list[tuple[ComparedRow, float]]] = {}
        for row in rows:
            value = row.values[place]
            first = row.values[0]
            # A single sample has no interval.
            if first is None or value is None or min(first.num_samples, value.num_samples) < 2:
                continue
            if value.change is not None:
                by_group.setdefault(row.group, []).append((row, value.change.ratio.middle))
        for group, found in by_group.items():
            ratios = [
                value.change.ratio
                for row, _ in found
                if (value := row.values[place]) is not None and value.change is not None
            ]
            ordered = sorted(found, key=lambda one: one[1])
            yield GroupChange(
                group=group,
                file=file.name,
                num_rows=len(found),
                ratio=mean_ratio(ratios),
                lowest=ordered[0][0].id,
                highest=ordered[-1][0].id,
            )


def step_parts(files: Sequence[LoadedBench]) -> Iterator[StepPart]:
    """The step of each workload that all files have, divided into parts, and their differences."""
    tables = [{row.id: row for row in one.file.rows if row.samples} for one in files]
    for id in tables[0]:
        workload, _, end = id.rpartition("/")
        if end in _STEPS and all(id in table for table in tables):
            yield from _parts_of(workload, id, tables)


def _parts_of(workload: str, id: str, tables: Sequence[dict[str, BenchRow]]) -> Iterator[StepPart]:
    wholes = [median(table[id].samples) for table in tables]
    known: dict[str, list[float]] = {}
    for part, shares in _shares(workload, tables).items():
        known[part] = [whole * share for whole, share in zip(wholes, shares, strict=True)]
    rest = [whole - math.fsum(part[i] for part in known.values()) for i, whole in enumerate(wholes)]
    if not known:
        return
    for part, seconds in {**known, "compute and the rest": rest}.items():
        yield StepPart(
            workload=workload.removeprefix("run/"),
            part=part,
            seconds=tuple(seconds),
            shares=tuple(_share(seconds, wholes, i) for i in range(len(tables))),
        )


def undivided(files: Sequence[LoadedBench], parts: Sequence[StepPart]) -> Iterator[str]:
    """The workloads whose steps all files have, but not the parts of these."""
    divided = {part.workload for part in parts}
    tables = [{row.id for row in one.file.rows if row.samples} for one in files]
    for id in sorted(set.intersection(*tables)) if len(tables) > 1 else ():
        workload, _, end = id.removeprefix("run/").rpartition("/")
        if id.startswith("run/") and end in _STEPS and workload not in divided:
            yield workload


def _shares(workload: str, tables: Sequence[dict[str, BenchRow]]) -> dict[str, list[float]]:
    """By part: its share of the step in each file; only those that all files have.

    The host fetches the batches too, so waiting for data is taken from its share.
    """
    found: dict[str, list[float]] = {}
    for end, part in _SHARES.items():
        rows = [table.get(f"{workload}/{end}") for table in tables]
        shares = [median(row.samples) for row in rows if row is not None and row.unit == "share"]
        if len(shares) == len(tables) and all(share <= 1 for share in shares):
            found[part] = shares
    data, host = found.get("data path"), found.get(_HOST_PART)
    if data is not None and host is not None:
        found[_HOST_PART] = [max(one - wait, 0.0) for one, wait in zip(host, data, strict=True)]
    return found


def _share(seconds: Sequence[float], wholes: Sequence[float], place: int) -> float | None:
    difference = wholes[place] - wholes[0]
    if abs(difference) < _LEAST_STEP_DIFFERENCE * wholes[0]:
        return None
    return (seconds[place] - seconds[0]) / difference
