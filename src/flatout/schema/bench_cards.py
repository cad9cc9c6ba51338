"""What other cards would do, as `flatout bench cards` predicts it."""

from __future__ import annotations

import msgspec

from flatout.schema.bench import Unit
from flatout.schema.tuning import Interval

CARDS_VERSION = 1


class StepBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's time is spent on, in seconds.

    compute: FLOPs at the peak rate; memory: the rest of the device's time. host: how long the host
    prepares and launches it, while the device works.
    """

    compute: float
    memory: float
    host: float

    @property
    def total(self) -> float:
        """The whole step: of the longer one of the two."""
        return max(self.compute + self.memory, self.host)


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step from which others are predicted, as `flatout bench run` has measured it.

    size: of the network, for people; None if unknown. device: its type, device_name: `cuda:N`.
    card: name of the GPU; None for a CPU. step_s: median. per_step: samples or tokens in it.
    host_share: of the step, in which the host is busy; 1: the device waits for it.
    peak_bytes: of memory. parameters: of the model; None if unknown.
    """

    workload: str
    way: str
    device: str
    dtype: str
    step_s: float
    flops: float
    per_step: float
    unit: Unit
    device_name: str
    size: str | None = None
    batch_size: float | None = None
    card: str | None = None
    host_share: float = 0.0
    peak_bytes: float | None = None
    parameters: float | None = None


class CardPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """One card, several, or a cloud instance.

    throughput: of all cards together, with the interval in which 9 of 10 public figures were.
    at_most: instead of it, where a step would be so short that its launches decide.
    does_fit: whether a step's memory fits; None if it is not known, or was measured on a CPU.
    watts: the most that the boards draw. per_price: samples for one unit of the price.
    unread: why nothing is predicted.
    """

    card: str
    short: str
    num_devices: int = 1
    instance: str | None = None
    provider: str | None = None
    throughput: Interval | None = None
    at_most: float | None = None
    ratio: float | None = None
    parts: StepBreakdown | None = None
    does_fit: bool | None = None
    memory_bytes: float
    watts: float
    per_joule: float | None = None
    price_per_hour: float | None = None
    per_price: Interval | None = None
    unread: str | None = None


class CardsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All predictions. how: what they rest on. error: a factor; 9 of 10 are within it."""

    cards_version: int = CARDS_VERSION
    measured: MeasuredStep
    dtype: str
    parts: StepBreakdown | None
    how: str
    error: float
    cards: tuple[CardPrediction, ...]
    instances: tuple[CardPrediction, ...]
    notes: tuple[str, ...] = ()
    prices_from: str | None = None
