"""A roofline that predicts one card from another, and how wrong it was for public figures.

A step on the measured card is divided in two: its FLOPs at the card's peak rate, and the rest,
which is taken for memory traffic. On another card the first shrinks with the peak rate, the rest
with the memory's bandwidth. What this card loses to its own peak is thereby carried over. No step
is shorter than the time that the host needs to launch it. Dividing by less than the peak (0.3 to
0.8 of it, as products really reach) made the predictions of the public figures worse.

Source: Williams, Waterman and Patterson (2009), Roofline, CACM 52 (4), 65-76.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from flatout.bench.card_tables import CardFacts, PublishedSeries, shipped_cards, shipped_series
from flatout.schema.bench_cards import StepBreakdown
from flatout.schema.tuning import Interval

# Of public figures, so many are inside the intervals.
COVERED = 0.9
# Of its maker's peak, a card reaches as much or more in matrix products: an A100 200 to 300 of
# 312 TFLOP/s. Source: stas00/ml-engineering, "Maximum Achievable FLOPS" (an estimate).
LEAST_SHARE_OF_PEAK = 0.65
# A step that short is made of launches: some hundred, each of some microseconds.
LEAST_STEP_S = 1e-3
# Ranks exchange gradients in fp32.
_GRADIENT_BYTES = 4.0


class PeakRates(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of a device: FLOP/s of one dtype, and B/s."""

    flops: float
    memory: float


class PairError(msgspec.Struct, frozen=True, kw_only=True):
    """A public figure that was predicted from that of another card."""

    series: str
    workload: str
    dtype: str
    source: str
    target: str
    predicted: float
    published: float

    @property
    def log_error(self) -> float:
        """Positive where the prediction was too high."""
        return math.log(self.predicted / self.published)


def rates_of(card: CardFacts, dtype: str) -> PeakRates | None:
    """The peaks of a card; None if it has no such dtype, or its bandwidth is not known."""
    flops, memory = getattr(card.peak, dtype, None), card.peak.memory
    return PeakRates(flops=flops, memory=memory) if flops and memory else None


def step_parts(step_s: float, flops: float, host_share: float, rates: PeakRates) -> StepBreakdown:
    """What the time of a measured step was spent on."""
    compute = min(flops / rates.flops, step_s)
    host = step_s * min(max(host_share, 0.0), 1.0)
    return StepBreakdown(compute=compute, memory=step_s - compute, host=host)


def moved(parts: StepBreakdown, source: PeakRates, target: PeakRates) -> StepBreakdown:
    """The same step on another card, with the same host."""
    return StepBreakdown(
        compute=parts.compute * source.flops / target.flops,
        memory=parts.memory * source.memory / target.memory,
        host=parts.host,
    )


def widened(middle: float, error: float) -> Interval:
    """An interval that reaches as far as predictions have been wrong."""
    return Interval(middle=middle, low=middle / error, high=middle * error)


@functools.cache
def transfer_error(workload: str | None) -> float:
    """The factor that predictions from card to card were wrong by, at most, in 9 of 10 cases.

    Of this workload's public figures; without any, or without a workload, the largest of all
    workloads: what limits another program is not known.
    """
    errors = pair_errors([one for one in shipped_series() if not one.is_held_out])
    factors = {
        name: factor_of([one for one in errors if one.workload == name])
        for name in {one.workload for one in errors}
    }
    worst = max(factors.values())
    return worst if workload is None else factors.get(workload, worst)


def factor_of(errors: Sequence[PairError]) -> float:
    """The factor within which 9 of 10 errors are."""
    sizes = sorted(abs(one.log_error) for one in errors)
    return math.exp(sizes[min(int(COVERED * len(sizes)), len(sizes) - 1)])


def pair_errors(series: Sequence[PublishedSeries]) -> list[PairError]:
    """Every card of a series predicted from every other one; those with several GPUs apart."""
    found = []
    for one in series:
        if one.num_devices > 1:
            continue
        for source, target in itertools.permutations(one.samples_per_s, 2):
            predicted = predicted_rate(one, source, target)
            if predicted is not None:
                found.append(
                    PairError(
                        series=one.name, workload=one.workload, dtype=one.dtype, source=source,
                        target=target, predicted=predicted, published=one.samples_per_s[target],
                    )
                )  # fmt: skip
    return found


def predicted_rate(series: PublishedSeries, source: str, target: str) -> float | None:
    """Samples per second of a card, from those of another; None where a peak is not known."""
    cards = shipped_cards()
    rates = [rates_of(cards[name], series.dtype) for name in (source, target)]
    if rates[0] is None or rates[1] is None:
        return None
    sample_s = 1 / series.samples_per_s[source]
    parts = step_parts(sample_s, series.flops_per_sample, 0.0, rates[0])
    return 1 / moved(parts, rates[0], rates[1]).total


def shares_of_peak(workload: str | None) -> Interval:
    """The share of a card's peak that public figures reach: those of a workload if there are some.

    What is known of a step that was measured on a CPU are its FLOPs. The middle is the median, the
    ends leave out one in twenty on each side.
    """
    shares = sorted(_shares(workload)) or sorted(_shares(None))
    cut = int((1 - COVERED) / 2 * len(shares))
    return Interval(middle=median(shares), low=shares[cut], high=shares[-1 - cut])


def has_public_figures(workload: str) -> bool:
    """Whether others have published its throughput."""
    return any(True for _ in _shares(workload))


def _shares(workload: str | None) -> Iterator[float]:
    for one in shipped_series():
        if one.num_devices > 1 or workload not in (None, one.workload):
            continue
        for name, rate in one.samples_per_s.items():
            rates = rates_of(shipped_cards()[name], one.dtype)
            if rates is not None:
                yield rate * one.flops_per_sample / rates.flops


@functools.cache
def scaling(num_devices: int) -> Interval:
    """The share of `num_devices` times one GPU's throughput that public figures reach.

    From those with two, or with eight for more than two; the ends are the worst and 1.
    """
    if num_devices == 1:
        return Interval(middle=1.0, low=1.0, high=1.0)
    measured = 2 if num_devices == 2 else 8
    shares = sorted(_scaling_shares(measured))
    return Interval(middle=min(median(shares), 1.0), low=shares[0], high=1.0)


def _scaling_shares(num_devices: int) -> Iterator[float]:
    by_name = {one.name: one for one in shipped_series()}
    for one in shipped_series():
        if one.num_devices != num_devices:
            continue
        base = by_name[one.name.rpartition(" x")[0]]
        for name, rate in one.samples_per_s.items():
            yield rate / (num_devices * base.samples_per_s[name])


def all_reduce_s(parameters: float, num_devices: int, link: float) -> float:
    """The time to sum the gradients of all ranks, at the link's peak.

    Source: Patarasuk and Yuan (2009): a ring sends 2 (n - 1) / n of the data from each rank.
    """
    return 2 * (num_devices - 1) / num_devices * parameters * _GRADIENT_BYTES / link
