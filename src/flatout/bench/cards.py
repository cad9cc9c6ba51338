"""What other cards, or several, would do with a measured workload: `flatout bench cards`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.bench import api as bench_api
from flatout.bench import card_model
from flatout.bench.card_model import PeakRates, widened
from flatout.bench.card_tables import CardFacts, date_of, shipped_cards, shipped_providers
from flatout.bench.measured_step import measured_step
from flatout.bench.peaks import shipped_peaks
from flatout.bench.prices import prices_from
from flatout.bench.read_files import read_files
from flatout.bench.run import chosen_workloads
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile
from flatout.schema.bench_cards import CardPrediction, CardsReport, MeasuredStep, StepBreakdown
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text, percent_text
from flatout.schema.workloads import WORKLOADS
from flatout.system.store import bench_runs

# CUDA's context and the allocator's gaps.
_BESIDE_BYTES = 2**30
# The host is busy nearly all the time: the device waits for it.
_HOST_BOUND = 0.9


class CardsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout bench cards` as data.

    file: of `flatout bench run`; None for the stored one. num_devices: of each card. dtype: None
    for the measured one. prices: typed as NAME=PRICE. prices_file: a TOML file of them.
    """

    workload: str
    file: str | None = None
    num_devices: tuple[int, ...] = (1,)
    dtype: str | None = None
    prices: tuple[str, ...] = ()
    prices_file: str | None = None


class _Basis(msgspec.Struct, frozen=True, kw_only=True):
    """What is carried over to other cards.

    rates, parts: of the measured card; None if only the FLOPs are known, then shares says what
    share of a peak to expect. error: factor. has_limits: rates are measured limits, not peaks.
    """

    step: MeasuredStep
    dtype: str
    how: str
    error: float
    rates: PeakRates | None = None
    parts: StepBreakdown | None = None
    shares: Interval | None = None
    has_limits: bool = False


def cards(request: CardsRequest) -> CardsReport:
    """Predicts every card of the tables, and every cloud instance.

    Raises:
        UsageError: bench-workload-not-measured, bench-step-without-flops, bench-bad-price,
            bench-unknown-card, and for the file.
    """
    prices, prices_origin = prices_from(request.prices, request.prices_file)
    path = _stored(request.workload) if request.file is None else Path(request.file).expanduser()
    [loaded] = read_files([path])
    step = measured_step(loaded.file, request.workload)
    basis = _basis(step, request.dtype or step.dtype, loaded.file)
    predicted = [
        _prediction(basis, card, num, prices)
        for num in sorted(set(request.num_devices))
        for card in shipped_cards().values()
    ]
    notes = [f"{loaded.name}: {text}" for text in (*loaded.problems, *loaded.file.warnings)]
    return CardsReport(
        measured=step,
        dtype=basis.dtype,
        parts=basis.parts,
        how=basis.how,
        error=basis.error,
        cards=tuple(sorted(predicted, key=_order)),
        instances=tuple(_instances(basis, prices)),
        notes=(*notes, *_notes(basis)),
        prices_from=prices_origin,
    )


def _stored(workload: str) -> Path:
    """The last result of `flatout bench run`. A name that is no workload's is not a path."""
    [known] = chosen_workloads([workload])
    path = bench_runs.run_path(known.name)
    if not path.is_file():
        raise UsageError(
            "bench-workload-not-measured",
            f"there is no stored measurement of {workload}.",
            because="`flatout bench cards` predicts from a measured step",
            fix=f"flatout bench run {workload}",
        )
    return path


def _basis(step: MeasuredStep, dtype: str, file: BenchFile) -> _Basis:
    peaks = _own_peaks(step) if dtype == step.dtype else None
    limits = _own_limits(step, file) if dtype == step.dtype and peaks is None else None
    published = step.workload if _is_published(step) else None
    rates = peaks or limits
    if rates is not None:
        error = card_model.transfer_error(published)
        parts = card_model.step_parts(step.step_s, step.flops, step.host_share, rates)
        return _Basis(
            step=step,
            dtype=dtype,
            rates=rates,
            parts=parts,
            error=error if limits is None else error / card_model.LEAST_SHARE_OF_PEAK,
            how="from its step on this card: its "
            + ("maker's peaks" if limits is None else "measured limits"),
            has_limits=limits is not None,
        )
    shares = card_model.shares_of_peak(published)
    has_figures = published is not None and card_model.has_public_figures(published)
    of = f"of {published}" if has_figures else "of all models"
    if dtype != step.dtype:
        why = f"measured in {step.dtype}, predicted in {dtype}"
    else:
        why = "measured on a CPU" if step.device == "cpu" else f"no peaks are known of {step.card}"
    return _Basis(
        step=step,
        dtype=dtype,
        shares=shares,
        error=max(shares.high / shares.middle, shares.middle / shares.low),
        how=f"from its FLOPs only ({why}): public figures {of} reach"
        f" {percent_text(shares.low, 0)} to {percent_text(shares.high, 0)} of a card's peak",
    )


def _is_published(step: MeasuredStep) -> bool:
    """Whether the network has the size of which others have published figures."""
    workload = WORKLOADS.get(step.workload)
    return workload is not None and step.size == workload.published.text


def _own_peaks(step: MeasuredStep) -> PeakRates | None:
    """What the maker states of the card that was measured."""
    peak = shipped_peaks().get(step.card or "") if step.device == "cuda" else None
    flops = getattr(peak, step.dtype, None)
    return PeakRates(flops=flops, memory=peak.memory) if peak and flops and peak.memory else None


def _own_limits(step: MeasuredStep, file: BenchFile) -> PeakRates | None:
    """What the card that was measured reaches itself, for want of its maker's peaks."""
    # A name from a file that others may have written.
    if step.device != "cuda" or step.card is None:
        return None
    limits = bench_api.known_limits(file.machine, step.device_name)
    if limits is None:
        return None
    flops = bench_api.known_limit(limits, f"limits/matmul/{step.dtype}")
    memory = bench_api.known_limit(limits, "limits/memory/triad")
    return PeakRates(flops=flops, memory=memory) if flops and memory else None


def _prediction(
    basis: _Basis, card: CardFacts, num_devices: int, prices: Mapping[str, float]
) -> CardPrediction:
    step = basis.step
    empty = CardPrediction(
        card=card.name, short=card.short, num_devices=num_devices,
        memory_bytes=card.memory_bytes, watts=card.watts * num_devices,
        does_fit=_does_fit(step, card), price_per_hour=_times(prices.get(card.name), num_devices),
    )  # fmt: skip
    target = card_model.rates_of(card, basis.dtype)
    if target is None:
        return msgspec.structs.replace(empty, unread=f"does not compute in {basis.dtype}")
    one, parts = _one_card(basis, target)
    if isinstance(one, float):
        return msgspec.structs.replace(empty, at_most=one * num_devices)
    several = _several(one, step, card, num_devices)
    price = empty.price_per_hour
    return msgspec.structs.replace(
        empty,
        throughput=several,
        ratio=several.middle * step.step_s / step.per_step,
        parts=parts,
        per_joule=several.middle / empty.watts,
        per_price=None if price is None else _scaled(several, 3600 / price),
    )


def _one_card(basis: _Basis, target: PeakRates) -> tuple[Interval | float, StepBreakdown | None]:
    """Throughput of one card, or what it is at most where launches decide; and the step's parts."""
    step = basis.step
    if basis.parts is not None and basis.rates is not None:
        parts = card_model.moved(basis.parts, basis.rates, target)
        return widened(step.per_step / parts.total, basis.error), parts
    assert basis.shares is not None
    least_s = step.flops / target.flops
    if least_s / basis.shares.high < card_model.LEAST_STEP_S:
        return step.per_step / least_s, None
    return _scaled(basis.shares, step.per_step / least_s), None


def _several(one: Interval, step: MeasuredStep, card: CardFacts, num_devices: int) -> Interval:
    """Each card has the whole batch; at worst nothing hides the exchange of gradients."""
    share = card_model.scaling(num_devices)
    exchange_s = card_model.all_reduce_s(step.parameters or 0.0, num_devices, card.link)
    slowest = 1 / (1 / one.low + exchange_s / step.per_step)
    return Interval(
        middle=one.middle * num_devices * share.middle,
        low=slowest * num_devices * share.low,
        high=one.high * num_devices * share.high,
    )


def _does_fit(step: MeasuredStep, card: CardFacts) -> bool | None:
    if step.peak_bytes is None or step.device != "cuda":
        return None
    return step.peak_bytes + _BESIDE_BYTES <= card.memory_bytes


def _instances(basis: _Basis, prices: Mapping[str, float]) -> Iterator[CardPrediction]:
    for provider in shipped_providers():
        for instance in provider.instances:
            card = shipped_cards()[instance.card]
            found = _prediction(basis, card, instance.num, {})
            price = prices.get(instance.name)
            per_price = None
            if price is not None and found.throughput is not None:
                per_price = _scaled(found.throughput, 3600 / price)
            yield msgspec.structs.replace(
                found, instance=instance.name, provider=provider.name, price_per_hour=price,
                per_price=per_price,
            )  # fmt: skip


def _order(one: CardPrediction) -> tuple[int, float]:
    return one.num_devices, -(one.throughput.middle if one.throughput else one.at_most or 0.0)


def _scaled(interval: Interval, factor: float) -> Interval:
    ends = (interval.middle, interval.low, interval.high)
    middle, low, high = (end * factor for end in ends)
    return Interval(middle=middle, low=low, high=high)


def _times(price: float | None, num: int) -> float | None:
    return None if price is None else price * num


def _notes(basis: _Basis) -> Sequence[str]:
    step, found = basis.step, []
    if not _is_published(step):
        found.append(
            f"the network is not the published {step.workload} ({step.size or 'size unknown'}): the"
            " interval is that of all workloads, and the cards are predicted for this network"
        )
    if basis.has_limits:
        found.append(
            "no peaks are known of this card: its measured limits are compared with the makers'"
            " peaks of the others, which no card reaches, so the others are shown too fast;"
            f" the interval is x{1 / card_model.LEAST_SHARE_OF_PEAK:.2f} wider for that"
        )
    if basis.parts is not None and step.host_share > _HOST_BOUND:
        found.append(
            f"the host is busy in {percent_text(step.host_share, 0)} of the step: a faster card"
            " would wait for it, and a slower one may do better than shown"
        )
    if basis.shares is not None and step.flops / basis.shares.low / 1e15 < card_model.LEAST_STEP_S:
        found.append(
            "steps shorter than 1 ms are made of launches: FLOPs do not predict them, so only what"
            " the peak allows is shown (at most)"
        )
    if basis.shares is not None:
        found.append(
            "memory bandwidth has no part in it: cards that differ only in that are shown as equal"
        )
    if step.peak_bytes is not None and step.device == "cpu":
        found.append("memory was measured on a CPU: whether it fits on a card is not known")
    found.append(
        "several GPUs: each has the whole batch, scaled as public figures with"
        f" {counted_text(2, 'GPU')} or 8 do; sources read {date_of('public_figures.toml')}"
    )
    return found
