"""`flatout bench slow-host`: its process's messages, and what it finds."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.experiment_spec import Value
from flatout.schema.predict_protocol import ProcessFailed, Reply
from flatout.schema.tuning import Interval
from flatout.schema.workloads import MeasuredSize

SLOW_HOST_VERSION = 1
# Of what is made slower: the same loop without anything, operators, the loader, all of the host.
What = Literal["none", "operators", "loader", "host"]


class SlowHostRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: what the plain loop trains. fixed: recipe fields that belong to it."""

    device: str
    size: MeasuredSize
    fixed: dict[str, Value] = {}


class SlowHostReady(Reply, frozen=True, kw_only=True, tag="slow-host-ready"):
    """The loop is warm. pid: what the parent may stop and continue.

    num_launches: operators of a step that start work on the device. step_s: of the last one.
    """

    pid: int
    torch: str
    num_threads: int
    num_launches: int
    step_s: float
    data: str
    name: str | None = None


class SlowBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A request: so many steps, made slower. delay_s: before each operator; None: not counted.

    loader_s: before each batch.
    """

    num_steps: int
    delay_s: float | None = None
    loader_s: float = 0.0


class SlowBlockTimed(Reply, frozen=True, kw_only=True, tag="slow-block-timed"):
    """Seconds of a step: host_s until all is launched, step_s until all is done.

    thread_s: that the training's thread has worked, whatever other programs took.
    """

    step_s: float
    host_s: float
    thread_s: float


AnySlowReply = SlowHostReady | SlowBlockTimed | ProcessFailed


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """How much something was slowed. amount: seconds for each launch or batch; for the host, the
    share of the time in which it may run. samples: step times, in time order; on a CPU, but
    for the host's share, in the thread's own time.
    """

    what: What
    amount: float
    samples: tuple[float, ...]


class SlowResponse(msgspec.Struct, frozen=True, kw_only=True):
    """How a step answers to delays of one kind.

    slope: seconds of a step for each second of delay, beyond what is hidden; counted per launch or
        batch. felt: slope by the number of launches or batches of a step: 1 means that none hides.
    hidden_s: delay per launch or batch that costs nothing. is_all_hidden: at all delays that were
        tried, so there is no slope. cost_2us: of a step's time, for 2 us per launch.
    """

    what: What
    num_per_step: int
    hidden_s: Interval
    slope: Interval | None = None
    felt: Interval | None = None
    is_all_hidden: bool = False
    cost_2us: Interval | None = None


class QuotaResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The step's time with a host that may run in this share of the time, by that without."""

    share: float
    ratio: Interval


class SlowHostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a slower host costs a workload. mode_s: what counting an operator takes by itself."""

    slow_host_version: int = SLOW_HOST_VERSION
    flatout: str
    workload: str
    size: str
    device: str
    name: str
    torch: str
    num_threads: int
    data: str
    settings: dict[str, str] = {}
    step_s: Interval
    mode_s: float
    operators: SlowResponse
    loader: SlowResponse
    quotas: tuple[QuotaResponse, ...]
    levels: tuple[Level, ...]
    words: tuple[str, ...]
    warnings: tuple[str, ...] = ()
