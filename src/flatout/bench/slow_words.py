"""What the numbers of `flatout bench slow-host` mean, in words."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.schema.slow_host import QuotaResponse, SlowHostReport, SlowResponse
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text, percent_text, seconds_text

# A share of a step's launches, or of the step, that is too little to be called hidden.
_LEAST_HIDDEN = 0.1
_LEAST_COST = 0.005


def words_of(report: SlowHostReport) -> Iterator[str]:
    """Sentences: launches, a slower platform, the loader, the CPU."""
    step_s = report.step_s.middle
    operators = report.operators
    if not operators.num_per_step:
        yield "a step launches nothing"
        return
    each_s = step_s / operators.num_per_step
    launches = counted_text(operators.num_per_step, "launch", "launches")
    yield f"{_hidden(operators, each_s, 'launch')} ({launches} a step)"
    yield f"a platform with 2 us slower launches would cost {_cost(operators.cost_2us)}"
    yield _hidden(report.loader, step_s, "batch")
    for quota in report.quotas:
        yield _quota(quota)


def _hidden(found: SlowResponse, each_s: float, noun: str) -> str:
    hidden = found.hidden_s
    if found.is_all_hidden:
        return (
            f"this workload hides at least {seconds_text(hidden.low)} per {noun}: nothing was felt"
        )
    if hidden.low < _LEAST_HIDDEN * each_s:
        return f"this workload hides nothing: each delay of a {noun} makes the step longer"
    ends = f"[{seconds_text(hidden.low)}, {seconds_text(hidden.high)}]"
    return f"this workload hides up to {seconds_text(hidden.middle)} {ends} per {noun}"


def _cost(cost: Interval | None) -> str:
    if cost is None or cost.high < _LEAST_COST:
        return "nothing that can be measured"
    texts = (percent_text(max(one, 0.0)) for one in (cost.middle, cost.low, cost.high))
    middle, low, high = texts
    return f"{middle} [{low.removesuffix(' %')}, {high.removesuffix(' %')}] of the step's time"


def _quota(quota: QuotaResponse) -> str:
    ratio = quota.ratio
    return (
        f"with {percent_text(quota.share, 0)} of the host's time a step takes"
        f" x{ratio.middle:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    )
