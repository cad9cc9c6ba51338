"""An estimate of a training step on many workers, from one that was measured.

The model, with n workers:

    step(n) = (data + copy + forward + backward) / shrink + optimizer + all_reduce(n)
    all_reduce(n) = 2 (n - 1) / n * gradient_bytes / bandwidth + 2 (n - 1) * latency

`shrink` is n where the workers share the measured batch (strong scaling), and 1 where each takes as
large a batch (weak scaling). A smaller batch is slower by the sample, so the step is taken from the
run whose forward passes had as few samples as a worker then has, where there is one: as many
micro-batches then divide by n exactly. Source of the second line: Patarasu and Yuan, Bandwidth
optimal all-reduce algorithms for clusters of workstations, J. Parallel Distrib. Comput. 69 (2009).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from flatout.errors import UsageError

Scaling = Literal["strong", "weak"]

_GRADIENT_BYTES = 4  # fp32, as weights and gradients are held whatever the step computes in
_MOST_WORKERS = 1_000_000
_POWER_FIX = "give the power draw of one worker, in watts: --power 350W"


class PredictRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout cluster predict` as data, still as texts.

    run: a run, or the name or file of an experiment; None takes the newest run.
    """

    run: str | None
    workers: str
    link: str
    scaling: Scaling = "strong"
    latency_us: float = 50.0
    price: str | None = None
    power: str | None = None
    energy_price: str | None = None


class WorkerStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as one worker was seen to make it.

    shared_s: what becomes less with fewer samples; backward_s: the part of it that the all-reduce
    can hide behind. optimizer_s: what every worker does in full.
    samples: of one step; micro_batch_size: of one forward pass. samples_per_epoch: of the training
    data. num_parameters: that are trained.
    """

    shared_s: float
    backward_s: float
    optimizer_s: float
    samples: float
    micro_batch_size: int
    samples_per_epoch: int
    num_parameters: int

    @property
    def step_s(self) -> float:
        """The length of the whole step."""
        return self.shared_s + self.optimizer_s

    @property
    def gradient_bytes(self) -> int:
        """The least number of bytes that each step sends."""
        return self.num_parameters * _GRADIENT_BYTES


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The network between the workers: bits per second out of each, and the time of a message."""

    bits_per_s: float
    latency_s: float


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The price and power of one worker; None if not given.

    price_per_hour: of a rented one, its energy included. power_w: watts while it trains.
    price_per_kwh: of energy, for workers that are not rented.
    """

    price_per_hour: float | None = None
    power_w: float | None = None
    price_per_kwh: float | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A training on that many workers. None for all numbers: it cannot be split so far.

    samples: that a worker has of a step, the largest share. is_shown: a run has made forward passes
    of so few; if not, they are taken to be as fast by the sample as the smallest measured.
    efficiency: throughput next to that of as many separate workers; most_efficiency: the same if
    the backward pass hides as much of the all-reduce as it can. energy_kwh, cost: of an epoch.
    """

    workers: int
    samples: int | None = None
    is_shown: bool = True
    step_s: float | None = None
    samples_per_s: float | None = None
    efficiency: float | None = None
    most_efficiency: float | None = None
    epoch_s: float | None = None
    energy_kwh: float | None = None
    cost: float | None = None


class Forecasts(msgspec.Struct, frozen=True, kw_only=True):
    """Measured steps and the forecasts from them. run: its id; unit: of its samples.

    smaller: the same step as other runs have made it, in smaller micro-batches.
    is_power_measured: the power is that of the run's GPU, and not one that the user gave.
    """

    run: str
    unit: str
    experiment: str
    measured: WorkerStep
    smaller: tuple[WorkerStep, ...] = ()
    link: Link
    scaling: Scaling
    rates: Rates
    is_power_measured: bool
    rows: tuple[Forecast, ...]


def forecast(
    steps: Sequence[WorkerStep], workers: int, link: Link, scaling: Scaling, rates: Rates
) -> Forecast:
    """The forecast of the model for a number of workers.

    Args:
        steps: the step of one worker, and maybe the same in smaller micro-batches.
        workers: how many.
        link: between them.
        scaling: whether they share the measured batch, or each has as large a one.
        rates: of one worker.
    """
    is_strong = scaling == "strong"
    here = steps[0]
    if is_strong and workers > here.samples:
        return Forecast(workers=workers)
    shrink = workers if is_strong else 1
    share = math.ceil(here.samples / shrink - 1e-9)
    measured = here if shrink == 1 else _nearest(steps, share)
    reduce_s = all_reduce_s(measured.gradient_bytes, workers, link)
    step_s = measured.shared_s / shrink + measured.optimizer_s + reduce_s
    hidden_s = min(reduce_s, measured.backward_s / shrink)
    samples = here.samples * (1 if is_strong else workers)
    alone = here.samples / here.step_s * workers
    # An epoch has whole steps; the small number keeps rounding from adding one.
    epoch_s = math.ceil(here.samples_per_epoch / samples - 1e-9) * step_s
    energy_kwh, cost = _spent(workers * epoch_s / 3600, rates)
    return Forecast(
        workers=workers,
        samples=share,
        # The last batch of an epoch may be smaller, so that the mean of a whole one is, too.
        is_shown=shrink == 1 or share >= measured.micro_batch_size,
        step_s=step_s,
        samples_per_s=samples / step_s,
        efficiency=samples / step_s / alone,
        most_efficiency=samples / (step_s - hidden_s) / alone,
        epoch_s=epoch_s,
        energy_kwh=energy_kwh,
        cost=cost,
    )


def _nearest(steps: Sequence[WorkerStep], share: int) -> WorkerStep:
    """The step of the largest forward passes that a share has samples for, or of the smallest."""
    fitting = [step for step in steps if step.micro_batch_size <= share]
    if fitting:
        return max(fitting, key=lambda step: step.micro_batch_size)
    return min(steps, key=lambda step: step.micro_batch_size)


def _spent(worker_hours: float, rates: Rates) -> tuple[float | None, float | None]:
    """Energy in kWh, and what is paid: for rented workers their rent, for others their energy."""
    energy_kwh = None if rates.power_w is None else worker_hours * rates.power_w / 1e3
    if rates.price_per_hour is not None:
        return energy_kwh, worker_hours * rates.price_per_hour
    if rates.price_per_kwh is None or energy_kwh is None:
        return energy_kwh, None
    return energy_kwh, energy_kwh * rates.price_per_kwh


def all_reduce_s(num_bytes: int, workers: int, link: Link) -> float:
    """The time of a ring all-reduce; see the model above."""
    if workers == 1:
        return 0.0
    sent_bits = 2 * (workers - 1) / workers * num_bytes * 8
    return sent_bits / link.bits_per_s + 2 * (workers - 1) * link.latency_s


def measured_step(
    split_s: dict[str, float],
    num_steps: int,
    samples_per_epoch: int,
    steps_per_epoch: int,
    num_parameters: int,
    micro_batch_size: int,
) -> WorkerStep | None:
    """A step of a run, from where its time went in that many steps; None if nothing was timed."""
    parts = {name: seconds / num_steps for name, seconds in split_s.items()}
    shared_s = sum(parts.get(name, 0.0) for name in ("data", "copy", "forward", "backward"))
    if not shared_s:
        return None
    return WorkerStep(
        shared_s=shared_s,
        backward_s=parts.get("backward", 0.0),
        optimizer_s=parts.get("optimizer", 0.0),
        samples=samples_per_epoch / steps_per_epoch,
        micro_batch_size=micro_batch_size,
        samples_per_epoch=samples_per_epoch,
        num_parameters=num_parameters,
    )


def parse_workers(text: str) -> list[int]:
    """`8,64,512` -> [8, 64, 512].

    Raises:
        UsageError: bad-forecast.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", name) for name in names):
        raise _bad(f"--workers {text}", "give integers separated by commas: --workers 8,64,512")
    counts = [int(name) for name in names]
    if not all(1 <= count <= _MOST_WORKERS for count in counts):
        raise _bad(f"--workers {text}", f"give numbers from 1 to {_MOST_WORKERS:,}")
    return sorted(set(counts))


def parse_link(text: str, latency_us: float) -> Link:
    """`10Gbps`, `400 Gbit/s`, `900Mbps`: bits per second, as networks are sold.

    Raises:
        UsageError: bad-forecast.
    """
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([kMGT])bi?t?(?:ps|/s)", text.strip())
    bits_per_s = float(match[1]) * 1000 ** (" kMGT".index(match[2])) if match else 0.0
    if not bits_per_s:
        raise _bad(f"--link {text}", "give bits per second: --link 10Gbps, --link 400Gbps")
    if not (math.isfinite(latency_us) and latency_us >= 0):
        raise _bad(f"--latency {latency_us:g}", "give microseconds of at least 0")
    return Link(bits_per_s=bits_per_s, latency_s=latency_us / 1e6)


def parse_price(text: str | None) -> float | None:
    """`2.5/h` or `2.5`: of one worker for an hour.

    Raises:
        UsageError: bad-forecast.
    """
    return _number(
        text, r"/\s*h", "--price", "give the price of one worker per hour: --price 2.5/h"
    )


def parse_power(text: str | None) -> float | None:
    """`350W`, `1.2kW` or `350`: watts of one worker.

    Raises:
        UsageError: bad-forecast.
    """
    if text is not None and text.strip().lower().endswith("kw"):
        kilowatts = _number(text, "[kK][wW]", "--power", _POWER_FIX)
        return None if kilowatts is None else kilowatts * 1e3
    return _number(text, "[wW]", "--power", _POWER_FIX)


def parse_energy_price(text: str | None) -> float | None:
    """`0.30/kWh` or `0.30`.

    Raises:
        UsageError: bad-forecast.
    """
    fix = "give the price of a kWh: --energy-price 0.30/kWh"
    return _number(text, r"/\s*[kK][wW][hH]", "--energy-price", fix)


def _number(text: str | None, unit: str, option: str, fix: str) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(rf"([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)(?:\s*{unit})?", text.strip())
    if match is None:
        raise _bad(f"{option} {text}", fix)
    return float(match[1])


def forecasts(
    steps: Sequence[WorkerStep],
    workers: Sequence[int],
    link: Link,
    scaling: Scaling,
    rates: Rates,
) -> tuple[Forecast, ...]:
    """A row for each number of workers, starting with the measured one, which costs no rent."""
    here = forecast(steps, 1, link, scaling, msgspec.structs.replace(rates, price_per_hour=None))
    more = [count for count in workers if count > 1]
    return (here, *(forecast(steps, count, link, scaling, rates) for count in more))


def _bad(option: str, fix: str) -> UsageError:
    return UsageError("bad-forecast", f"`{option}` is not valid.", fix=fix)
