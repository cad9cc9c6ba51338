"""Evaluates the blocks of no_regret.py: ratios with their intervals, the table, the goals."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from flatout.schema.tuning import Interval
from flatout.tune.statistics import speedup

# One model with a ten times faster step must not make up for nine without any gain.
CAP = 4.0
LEAST_LOWER_BOUND = 0.98
LEAST_OF_ORACLE = 0.95
LEAST_MEAN = 1.8
# The share of the gain on a quiet machine that must remain next to other programs.
LEAST_BESIDE = 0.9
# Resampling fewer processes makes the interval too narrow.
_RESAMPLED, _ENOUGH_PROCESSES = 1000, 6
MOST_SEARCH_S, MOST_SEARCH_STEPS = 60.0, 12
# A block during which others had more than this of one core is counted as disturbed; of a machine
# on which more than so many blocks are, ratios say little.
OTHERS_SHARE, MOST_DISTURBED = 0.1, 0.25

# Seconds per update of each contestant, block by block, in each process.
Blocks = dict[str, list[list[float]]]


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of a search, and its cost.

    fields: None if flatout's defaults stay. defaults: their fields; None if unknown.
    """

    fields: dict[str, Any] | None
    defaults: dict[str, Any] | None = None
    search_s: float
    why: str


class Screened(msgspec.Struct, frozen=True, kw_only=True):
    """The oracle's first pass. found: fields and seconds per update, fastest first."""

    found: list[dict[str, Any]]
    problems: list[dict[str, Any]]
    took_s: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The complete result of one model; a line of the work file.

    blocks: of `plain`, `defaults`, `accelerate`, `lightning`, `chosen`, `data` (the chosen data
    path only) and `oracle 1` to `oracle 5`. others: share of a core that other programs used, in
    each block. neighbours: the programs that ran on purpose.
    """

    key: str
    model: str
    searched: Searched
    screened: Screened
    blocks: Blocks
    others: list[float]
    problems: dict[str, str]
    final_s: float
    neighbours: str = "none"

    def ratio(self, faster: str, slower: str) -> Interval | None:
        """How many times as fast the first is as the second; None if one is missing."""
        first, second = self.blocks.get(faster), self.blocks.get(slower)
        if not first or not second:
            return None
        logs = [
            [math.log(before / after) for before, after in zip(*rows, strict=True)]
            for rows in zip(second, first, strict=True)
        ]
        return _resampled(logs) if len(logs) >= _ENOUGH_PROCESSES else _of_few(logs)

    def update_s(self, name: str) -> float:
        """The median block's seconds per update."""
        return statistics.median(one for process in self.blocks[name] for one in process)

    @property
    def is_default(self) -> bool:
        """Whether the search kept the defaults."""
        return self.searched.fields is None

    @property
    def trained(self) -> str:
        """The name of the blocks of the recipe that a training uses after the search."""
        return "defaults" if self.is_default else "chosen"

    def over_plain(self) -> Interval:
        """Of the recipe used after the search, over the plain loop."""
        found = self.ratio(self.trained, "plain")
        return found or Interval(middle=1.0, low=1.0, high=1.0)

    def over_defaults(self) -> Interval:
        """Of the choice over flatout's defaults; 1 by definition if these stay."""
        found = None if self.is_default else self.ratio("chosen", "defaults")
        return found or Interval(middle=1.0, low=1.0, high=1.0)

    @property
    def has_oracle(self) -> bool:
        """Whether recipes of the grid were measured, too."""
        return any(name.startswith("oracle") for name in self.blocks)

    def best_of_oracle(self) -> str:
        """The fastest of the grid's best on these blocks, or the defaults."""
        others = ("plain", "defaults")
        names = [name for name in self.blocks if name in others or name.startswith("oracle")]
        return min(names, key=self.update_s)

    def of_oracle(self) -> Interval:
        """Speed of the choice, as a share of the oracle's."""
        best = self.best_of_oracle()
        found = None if self.trained == best else self.ratio(self.trained, best)
        return found or Interval(middle=1.0, low=1.0, high=1.0)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All models together. Means are geometric, of ratios capped at 4.

    data_mean: gain of the data path alone; rest_mean: gain of everything else on top of it.
    num_with_oracle: models whose grid was measured.
    """

    num_models: int
    num_with_oracle: int
    num_not_slower: int
    num_over_defaults: int
    num_near_oracle: int
    num_quick: int
    mean: float
    data_mean: float
    rest_mean: float

    def goals(self) -> list[tuple[str, bool]]:
        """Each goal in words, with whether it is reached."""
        every, compared = self.num_models, self.num_with_oracle
        near = f">= {LEAST_OF_ORACLE} of the oracle: {self.num_near_oracle} of {compared}"
        return [
            (f"lower bound over plain >= {LEAST_LOWER_BOUND}: {self.num_not_slower} of {every}",
             self.num_not_slower == every),
            (f"lower bound over the defaults >= {LEAST_LOWER_BOUND}: "
             f"{self.num_over_defaults} of {every}", self.num_over_defaults == every),
            *([(near, self.num_near_oracle == compared)] if compared else []),
            (f"search <= max({MOST_SEARCH_S:.0f} s, {MOST_SEARCH_STEPS} plain steps): "
             f"{self.num_quick} of {every}", self.num_quick == every),
            (f"geometric mean over plain >= {LEAST_MEAN}: {self.mean:.2f}",
             self.mean >= LEAST_MEAN),
        ]  # fmt: skip


def summary(results: Sequence[Measured]) -> Summary:
    """Counts and means over the models."""
    whole = [one.over_plain().middle for one in results]
    data = [_middle(None if one.is_default else one.ratio("data", "plain")) for one in results]
    rest = [_middle(None if one.is_default else one.ratio("chosen", "data")) for one in results]
    limits = [max(MOST_SEARCH_S, MOST_SEARCH_STEPS * one.update_s("plain")) for one in results]
    compared = [one for one in results if one.has_oracle]
    return Summary(
        num_models=len(results),
        num_with_oracle=len(compared),
        num_not_slower=sum(one.over_plain().low >= LEAST_LOWER_BOUND for one in results),
        num_over_defaults=sum(one.over_defaults().low >= LEAST_LOWER_BOUND for one in results),
        num_near_oracle=sum(one.of_oracle().middle >= LEAST_OF_ORACLE for one in compared),
        num_quick=sum(
            one.searched.search_s <= limit for one, limit in zip(results, limits, strict=True)
        ),
        mean=capped_mean(whole),
        data_mean=capped_mean(data),
        rest_mean=capped_mean(rest),
    )


def beside_others(results: Sequence[Measured]) -> list[tuple[str, bool]]:
    """For each kind of neighbour, whether enough of the gain remains.

    Only models that were measured with and without neighbours count.
    """
    alone = {one.model: one for one in results if one.neighbours == "none"}
    goals = []
    for kind in dict.fromkeys(one.neighbours for one in results):
        pairs = [(one, alone[one.model]) for one in results
                 if one.neighbours == kind != "none" and one.model in alone]  # fmt: skip
        if not pairs:
            continue
        beside, without = (
            capped_mean(one.over_plain().middle for one in side)
            for side in zip(*pairs, strict=True)
        )
        text = f"geometric mean next to {kind} >= {LEAST_BESIDE} of that alone: "
        reported = f"{text}{beside:.2f} of {without:.2f}, {len(pairs)} models"
        goals.append((reported, beside >= LEAST_BESIDE * without))
    return goals


def _of_few(logs: list[list[float]]) -> Interval:
    """The same from few processes: Student's interval around the mean of their medians."""
    if len(logs) == 1:
        return _resampled(logs)
    within = _resampled(logs)
    between = speedup([(math.exp(statistics.median(row)), 1.0) for row in logs])
    low, high = min(within.low, between.low), max(within.high, between.high)
    return Interval(middle=between.middle, low=low, high=high)


def _resampled(logs: list[list[float]]) -> Interval:
    """The median ratio with its 95 % interval: pairs of blocks, resampled from resampled
    processes, 1,000 times with a fixed seed. Disturbed blocks are outliers, not normal.
    """
    draw = random.Random(0)
    medians = []
    for _ in range(_RESAMPLED):
        drawn = [
            one for row in draw.choices(logs, k=len(logs)) for one in draw.choices(row, k=len(row))
        ]
        medians.append(statistics.median(drawn))
    medians.sort()
    cut = round(0.025 * _RESAMPLED)
    low, high = medians[cut], medians[-1 - cut]
    middle = statistics.median(one for row in logs for one in row)
    return Interval(middle=math.exp(middle), low=math.exp(low), high=math.exp(high))


def capped_mean(ratios: Iterable[float]) -> float:
    """The geometric mean of ratios, none of which counts for more than 4."""
    return math.exp(statistics.fmean(math.log(min(ratio, CAP)) for ratio in ratios))


def _middle(interval: Interval | None) -> float:
    return interval.middle if interval else 1.0


def disturbed_share(results: Sequence[Measured]) -> float:
    """The share of blocks disturbed by programs that were not started on purpose."""
    alone = [share for one in results if one.neighbours == "none" for share in one.others]
    return statistics.fmean(share > OTHERS_SHARE for share in alone) if alone else 0.0


def table(results: Sequence[Measured]) -> str:
    """One line for each model."""
    lines = [
        f"{'':18}{'next to':9}{'plain':>10}  {'chosen / plain':21}{'chosen / defaults':21}"
        f"{'oracle':>7}{'Lightn.':>9}{'Accel.':>8}{'search':>8}{'steps':>9}  chosen"
    ]
    for one in results:
        plain_s, over = one.update_s("plain"), one.over_plain()
        defaults = "1 by definition" if one.is_default else interval_text(one.over_defaults())
        share = f"{one.of_oracle().middle:.2f}" if one.has_oracle else "-"
        lines.append(
            f"{one.model:18}{one.neighbours:9}{plain_s * 1e3:7.1f} ms  {interval_text(over):21}"
            f"{defaults:21}{share:>7}{_over(one, 'lightning'):>9}{_over(one, 'accelerate'):>8}"
            f"{one.searched.search_s:6.0f} s{one.searched.search_s / plain_s:9,.0f}"
            f"  {fields_text(one.searched.fields)}"
        )
    return "\n".join(lines)


def interval_text(interval: Interval) -> str:
    """`x1.43 [1.40, 1.46]`."""
    return f"x{interval.middle:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _over(result: Measured, peer: str) -> str:
    found = result.ratio(result.trained, peer)
    return f"x{found.middle:.2f}" if found else "-"


# What a plain loop does, and what needs no mention.
_USUAL = {
    "precision": "fp32", "memory_format": "contiguous", "attention": "auto",
    "optimizer_implementation": "own", "loader_workers": 0, "loader_persistent": None,
}  # fmt: skip


def fields_text(fields: dict[str, Any] | None) -> str:
    """A recipe in few words: what differs from a plain loop."""
    if fields is None:
        return "the defaults"
    short = {"num_threads": "threads", "loader_workers": "workers"}
    reported = []
    for name, value in fields.items():
        if name in _USUAL and _USUAL[name] in (None, value):
            continue
        is_named = isinstance(value, str) and name != "attention"
        reported.append(str(value) if is_named else f"{short.get(name, name)} {value}")
    return ", ".join(reported) or "flatout's loop"
