"""What `flatout bench compare` finds: ratios, verdicts, and what else differs."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.bench import BenchFile, Unit
from flatout.schema.tuning import Interval

COMPARISON_VERSION = 1
ComparisonVerdict = Literal["faster", "slower", "better", "worse", "cannot tell"]
# What is limited by what, in the order in which it is shown.
Group = Literal[
    "training", "compute", "memory", "communication", "copies", "launch latency", "data path",
    "disk", "process start", "other",
]  # fmt: skip


class LoadedBench(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read. name: short and unique among those compared.

    problems: what was wrong with its rows; these are then without samples.
    """

    name: str
    path: str
    file: BenchFile
    problems: tuple[str, ...] = ()


class ComparedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One of the files, in one line. at: when it was measured."""

    name: str
    path: str
    kind: str
    at: str
    flatout: str
    machine: str


class RowChange(msgspec.Struct, frozen=True, kw_only=True):
    """A row of one file against the same row of the first.

    ratio: above 1 is better: more per second, or fewer seconds. With its 95 % interval, which is
        a point if there is only one sample on each side.
    p_value: of a rank test. why: the reason for "cannot tell" if it is not the interval.
    """

    ratio: Interval
    p_value: float
    verdict: ComparisonVerdict
    why: str | None = None


class ComparedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A row of one file. median: with its 95 % interval; None with the reason in `unread`.

    outliers: samples far from the others; they count all the same. drift: by what share the end
    differs from the beginning, None if there is no trend. of_vendor: share of the vendor's peak.
    change: against the first file.
    """

    median: Interval | None = None
    num_samples: int = 0
    outliers: tuple[float, ...] = ()
    drift: float | None = None
    of_vendor: float | None = None
    conditions: dict[str, str] = {}
    change: RowChange | None = None
    unread: str | None = None


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The same quantity in all files. values: in their order, None if a file lacks the row.

    note: the conditions that differ.
    """

    id: str
    label: str
    group: Group
    unit: Unit
    is_higher_better: bool
    values: tuple[ComparedValue | None, ...]
    note: str | None = None


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one group limits, of one file against the first.

    ratio: geometric mean over the rows with several samples.
    lowest, highest: ids of the rows at the ends.
    """

    group: Group
    file: str
    num_rows: int
    ratio: Interval
    lowest: str
    highest: str


class StepPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a workload's step: seconds in each file, and its share of the difference.

    shares: by file, of the difference of the whole step to the first; None where that is unclear.
    """

    workload: str
    part: str
    seconds: tuple[float | None, ...]
    shares: tuple[float | None, ...]


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """A fact in which the files differ; None where it is unknown."""

    name: str
    values: tuple[str | None, ...]


class BenchComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Files compared with the first of them.

    num_tests: ratios that were looked at together, for which verdicts are corrected.
    left_out: rows that are in one file only.
    """

    comparison_version: int = COMPARISON_VERSION
    files: tuple[ComparedFile, ...]
    rows: tuple[ComparedRow, ...]
    groups: tuple[GroupChange, ...] = ()
    step_parts: tuple[StepPart, ...] = ()
    differing: tuple[Differing, ...] = ()
    warnings: tuple[str, ...] = ()
    num_tests: int = 0
    left_out: tuple[str, ...] = ()
