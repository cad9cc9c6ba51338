"""A training on a simulated clock: what a monitor sees of it, second by second.

Shapes are of healthy trainings; faults are planted in them at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from flatout.monitor.run_sample import RunSample
from flatout.schema.alarm import RankProgress, WorkerSample
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import DiskSample, GpuSample, HostSample, MachineSample
from flatout.schema.run_lines import (
    Checkpointed,
    EpochEnded,
    Failed,
    Line,
    Progress,
    Started,
    Validated,
)

GIB = 2**30
BEGAN = 1_800_000_000.0
PID = 4321


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A healthy training.

    loads_s: before it starts. compiles_s: before its first step. validates_s: at each epoch's
    end. restarts_s: its loaders at each epoch's beginning. saves_every_s, saves_s: checkpoints, for
    which it waits. data: share of a step that waits for data. utilization: of the GPU in steps;
    None: it trains on the CPU. exchange: share of a step between ranks. warm_up: steps in which the
    learning rate rises. resumed_at: the step it continues from. memory: share of the GPU's that
    tensors take. reasons: why its clocks are limited. neighbor: factor on the speed at a time.
    loss: by step. host_bytes: memory of its processes at a time.
    """

    name: str
    step_s: float = 0.05
    steps_per_epoch: int = 400
    loads_s: float = 5.0
    compiles_s: float = 0.0
    validates_s: float = 3.0
    restarts_s: float = 0.3
    saves_every_s: float = 120.0
    saves_s: float = 0.3
    data: float = 0.05
    utilization: float | None = 0.9
    exchange: float = 0.0
    num_ranks: int = 1
    warm_up: int = 0
    resumed_at: int = 0
    noise: float = 0.03
    memory: float = 0.6
    reasons: tuple[str, ...] = ()
    neighbor: Callable[[float], float] = lambda s: 1.0
    loss: Callable[[int], float] = lambda step: 0.05 + 2.3 * math.exp(-step / 500)
    host_bytes: Callable[[float], float] = lambda s: 3 * GIB


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong at a time; rule: the alarm that should be raised."""

    rule: str
    at_s: float = 60.0


@dataclass
class _State:
    step: int = 0
    epoch: int = 0
    samples: int = 0
    done_until_s: float = 0.0
    # What the training does until a time, and for which part of its split.
    busy_until_s: float = 0.0
    busy_part: str = "other"
    split_s: dict[str, float] = field(default_factory=dict)
    rank_split_s: dict[str, float] = field(default_factory=dict)
    line_s: float = -1.0
    line_step: int = 0
    saved_s: float = 0.0
    cpu_s: float = 20.0
    has_ended: bool = False


_PARTS = ("data", "copy", "forward", "backward", "exchange", "optimizer", "checkpoint",
          "validation", "other")  # fmt: skip


class Simulation:
    """Gives what the monitor sees of a shape with a fault, if any, once a second."""

    def __init__(self, shape: Shape, fault: Fault | None = None, seed: int = 1) -> None:
        self._shape = shape
        self._fault = fault
        self._random = random.Random(seed)
        self._state = _State(step=shape.resumed_at)
        self._state.epoch = shape.resumed_at // shape.steps_per_epoch
        self._state.split_s = dict.fromkeys(_PARTS, 0.0)
        self._state.rank_split_s = dict.fromkeys(_PARTS, 0.0)
        self._is_started = False

    def samples(self, seconds: int) -> Iterator[tuple[MachineSample, list[RunSample]]]:
        """As many samples as seconds."""
        for second in range(1, seconds + 1):
            now_s = float(second)
            lines, ranks = [], []
            if not (self._has("worker-died", now_s) or self._has("run-hung", now_s)):
                lines, ranks = self._advance(now_s)
            yield self._machine(now_s), [self._run(now_s, lines, ranks)]

    def _has(self, rule: str, now_s: float) -> bool:
        fault = self._fault
        return fault is not None and fault.rule == rule and now_s >= fault.at_s

    def _advance(self, now_s: float) -> tuple[list[Line], list[RankProgress]]:
        shape, state = self._shape, self._state
        lines: list[Line] = []
        if not self._is_started:
            if now_s < shape.loads_s:
                return [], []
            self._is_started = True
            state.done_until_s = state.saved_s = now_s
            state.busy_until_s = now_s + shape.compiles_s
            lines.append(self._started(now_s))
        ranks: list[RankProgress] = []
        while state.done_until_s < now_s and not state.has_ended:
            self._make_step(lines)
        if shape.num_ranks > 1:
            line = RankProgress(at=BEGAN + now_s, rank=1, split_s=dict(state.rank_split_s))
            ranks.append(line)
        return lines, ranks

    def _make_step(self, lines: list[Line]) -> None:
        shape, state = self._shape, self._state
        if state.busy_until_s > state.done_until_s:
            seconds = state.busy_until_s - state.done_until_s
            state.split_s[state.busy_part] += seconds
            state.rank_split_s[state.busy_part] += seconds
            state.done_until_s = state.busy_until_s
            return
        now_s = state.done_until_s
        step_s = shape.step_s / shape.neighbor(now_s) * self._random.uniform(0.9, 1.15)
        data, exchange = shape.data, shape.exchange
        if self._has("data-starvation", now_s):
            data, step_s = 0.8, step_s * 4
        if self._has("gpu-memory-spilled", now_s):
            step_s *= 8
        own, of_rank = exchange, exchange
        if self._has("rank-straggling", now_s):
            step_s *= 3
            own, of_rank = 0.65, 0.02
        for split, waits in ((state.split_s, own), (state.rank_split_s, of_rank)):
            rest = step_s * (1 - data - waits)
            split["data"] += step_s * data
            split["exchange"] += step_s * waits
            for part, share in (("forward", 0.3), ("backward", 0.55), ("optimizer", 0.15)):
                split[part] += rest * share
        state.done_until_s += step_s
        state.step += 1
        state.cpu_s += step_s * 0.8
        self._after_step(lines)

    def _after_step(self, lines: list[Line]) -> None:
        shape, state = self._shape, self._state
        now_s = state.done_until_s
        pace_s = 0.1 if now_s < 60 else 1.0 if now_s < 600 else 10.0
        if now_s - state.line_s >= pace_s:
            if self._has("nonfinite-loss", now_s):
                finding = Finding(rule="nonfinite-loss", severity="error", problem="it is nan.")
                lines.append(Failed(at=BEGAN + now_s, step=state.step, finding=finding))
                state.has_ended = True
                return
            lines.append(self._progress(now_s))
            state.line_s, state.line_step = now_s, state.step
        if state.step % shape.steps_per_epoch == 0:
            steps = range(state.step - shape.steps_per_epoch, state.step)
            loss = sum(map(shape.loss, steps)) / len(steps)
            if self._has("loss-flat", now_s):
                loss = 2.303
            at = BEGAN + now_s
            lines.append(EpochEnded(at=at, step=state.step, epoch=state.epoch, loss=loss))
            state.epoch += 1
            state.split_s["data"] += shape.restarts_s
            state.rank_split_s["data"] += shape.restarts_s
            state.done_until_s += shape.restarts_s
            state.busy_until_s = state.done_until_s + shape.validates_s
            state.busy_part = "validation"
            state.cpu_s += shape.validates_s * 0.7
            metrics: dict[str, float | None] = {"accuracy": 0.9}
            at = BEGAN + state.busy_until_s
            lines.append(
                Validated(at=at, step=state.step, epoch=state.epoch, metrics=metrics, is_best=True)
            )
        elif now_s - state.saved_s >= shape.saves_every_s:
            state.saved_s = now_s
            state.busy_until_s, state.busy_part = now_s + shape.saves_s, "checkpoint"
            state.cpu_s += shape.saves_s * 0.2
            lines.append(Checkpointed(at=BEGAN + now_s, step=state.step, stall_s=shape.saves_s,
                                      write_s=1.0, slowdown_s=0.0, size_bytes=10**8))  # fmt: skip

    def _started(self, now_s: float) -> Started:
        shape = self._shape
        return Started(
            at=BEGAN + now_s, step=shape.resumed_at, pid=PID, num_steps=None, num_epochs=100,
            steps_per_epoch=shape.steps_per_epoch, num_parameters=10**6, num_samples=10**5,
            resumed=shape.resumed_at > 0, num_ranks=shape.num_ranks,
        )  # fmt: skip

    def _progress(self, now_s: float) -> Progress:
        shape, state = self._shape, self._state
        steps = max(1, state.step - state.line_step)
        loss = shape.loss(state.step)
        if self._fault is not None and self._fault.rule == "loss-flat":
            loss = 2.303
        loss *= 1 + self._random.gauss(0, shape.noise / math.sqrt(steps))
        rate = 0.1 * min(1.0, state.step / shape.warm_up) if shape.warm_up else 0.1
        allocated = None
        if shape.utilization is not None:
            allocated = int(shape.memory * 7 * GIB * self._random.uniform(0.999, 1.001))
            if self._fault is not None and self._has("gpu-memory-leak", now_s):
                allocated += int((now_s - self._fault.at_s) * 12e6)
        return Progress(
            at=BEGAN + now_s, step=state.step, epoch=state.epoch, loss=loss,
            samples_per_s=64 * steps / max(1e-3, now_s - state.line_s), learning_rate=rate,
            memory_bytes=2 * GIB, split_s=dict(state.split_s), allocated_bytes=allocated,
        )  # fmt: skip

    def _run(self, now_s: float, lines: list[Line], ranks: list[RankProgress]) -> RunSample:
        state, fault = self._state, self._fault
        memory = self._shape.host_bytes(now_s) * self._random.uniform(0.9995, 1.0005)
        if fault is not None and self._has("memory-leak", now_s):
            memory += (now_s - fault.at_s) * 20e6
        is_in_use = not self._has("worker-died", now_s) and not state.has_ended
        worker = WorkerSample(
            pid=PID, is_stopped=False, cpu_s=state.cpu_s + now_s * 0.05, memory_bytes=int(memory)
        )
        if self._has("run-hung", now_s) and fault is not None:
            worker = WorkerSample(pid=PID, is_stopped=False, cpu_s=99999.0, memory_bytes=GIB)
        return RunSample(
            id="simulated-0001", typed="simulated-0001", log="worker.log", at=BEGAN + now_s,
            is_in_use=is_in_use, lines=tuple(lines), worker=worker if is_in_use else None,
            ranks=tuple(ranks),
        )  # fmt: skip

    def _machine(self, now_s: float) -> MachineSample:
        fault = self._fault
        free = 40 * GIB
        if fault is not None and self._has("disk-filling", now_s):
            free = max(0, int(1.2 * GIB - (now_s - fault.at_s) * 15e6))
        disk = DiskSample(path="/", total_bytes=100 * GIB, free_bytes=free)
        host = HostSample(memory_bytes=32 * GIB, available_bytes=16 * GIB, disks=(disk,))
        gpus = () if self._shape.utilization is None else (self._gpu(now_s),)
        source = "nvml" if gpus else "none"
        return MachineSample(at=BEGAN + now_s, host=host, gpus=gpus, source=source)

    def _gpu(self, now_s: float) -> GpuSample:
        shape, state = self._shape, self._state
        is_stepping = self._is_started and now_s >= state.busy_until_s
        used = (shape.utilization or 0.0) * self._random.uniform(0.9, 1.1) if is_stepping else 0.0
        if self._is_started and state.busy_part == "validation" and not is_stepping:
            used = 0.3
        clock, reasons = 1.8e9, shape.reasons
        if self._has("data-starvation", now_s):
            used *= 0.2
        if self._has("gpu-idle-in-training", now_s) or self._has("run-hung", now_s):
            used = 0.0
        if self._has("gpu-thermal-throttle", now_s):
            clock, reasons = 1.2e9, ("thermal-slowdown",)
        if self._has("gpu-power-throttle", now_s):
            clock, reasons = 0.9e9, ("hardware-slowdown", "power-brake")
        if self._has("gpu-clocks-low", now_s):
            clock, reasons, used = 0.4e9, (), 0.99
        is_full = self._has("gpu-memory-spilled", now_s)
        memory = 0.98 if is_full else shape.memory + 0.05
        return GpuSample(
            index=0, name="NVIDIA GeForce RTX 3070", uuid="GPU-1", utilization=min(1.0, used),
            memory_bytes=8 * GIB, used_bytes=int(memory * 8 * GIB), clock_hz=clock,
            highest_clock_hz=2.1e9, temperature_c=70.0, power_w=180.0, throttle_reasons=reasons,
            xid=79 if self._has("gpu-xid", now_s) else None,
            ecc_uncorrected=2 if self._has("gpu-ecc-errors", now_s) else 0,
        )  # fmt: skip


def _grows_in_first_epoch(seconds: float) -> float:
    return GIB + min(seconds, 300.0) * 20e6


HEALTHY = (
    Shape(name="plain"),
    Shape(name="on a CPU", utilization=None, step_s=0.2, steps_per_epoch=100),
    Shape(name="warm-up", warm_up=5000, loss=lambda s: 6.9 - 5 * max(0, s - 4000) / (s + 4000)),
    Shape(name="long validations", validates_s=90.0, steps_per_epoch=2000),
    Shape(name="short epochs", steps_per_epoch=25, step_s=0.04, restarts_s=0.4, validates_s=0.2),
    Shape(name="checkpoint stalls", saves_every_s=60.0, saves_s=12.0),
    Shape(name="busy neighbor", neighbor=lambda s: 0.35 if 600 < s % 1200 < 900 else 1.0),
    Shape(name="full GPU and a busy neighbor", memory=0.92,
          neighbor=lambda s: 0.6 if s % 700 > 400 else 1.0),
    Shape(name="small model", utilization=0.06, step_s=0.003, data=0.25, steps_per_epoch=5000),
    Shape(name="long compilation", compiles_s=400.0),
    Shape(name="resumed late", resumed_at=200_000, loss=lambda s: 0.05),
    Shape(name="converged", loss=lambda s: 0.05 + 2.3 * math.exp(-s / 50)),
    Shape(name="slow steps", step_s=8.0, steps_per_epoch=50, utilization=0.99),
    Shape(name="at its power limit", reasons=("power-cap",), utilization=1.0),
    Shape(name="fills its caches", host_bytes=_grows_in_first_epoch, steps_per_epoch=6000),
    Shape(name="two ranks that exchange much", num_ranks=2, exchange=0.6),
    Shape(name="noisy loss", noise=0.6, loss=lambda s: 4.0 - 2.0 * s / (s + 3000)),
    Shape(name="half of its data late", data=0.4, utilization=0.55),
)  # fmt: skip

_PLAIN = Shape(name="plain", steps_per_epoch=300, validates_s=0.5)
FAULTS = (
    *(
        (_PLAIN, Fault(rule=rule))
        for rule in (
            "gpu-idle-in-training", "data-starvation", "gpu-thermal-throttle",
            "gpu-power-throttle", "gpu-clocks-low", "gpu-xid", "gpu-ecc-errors", "disk-filling",
            "nonfinite-loss", "worker-died", "run-hung", "memory-leak", "gpu-memory-leak",
            "gpu-memory-spilled",
        )
    ),
    (_PLAIN, Fault(rule="gpu-memory-spilled", at_s=900.0)),
    (replace(_PLAIN, step_s=0.02), Fault(rule="loss-flat", at_s=5.0)),
    (replace(_PLAIN, num_ranks=2, exchange=0.1), Fault(rule="rank-straggling")),
)  # fmt: skip
