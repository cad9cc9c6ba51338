"""`flatout bench slow-host`: how a workload's step answers to a slower host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import msgspec

import flatout
from flatout.bench.api import resolved_device
from flatout.bench.limits import Doing, error_from
from flatout.bench.run import chosen_workloads, device_names, devices_here
from flatout.bench.slow_response import Response, paired_ratio, response
from flatout.bench.slow_words import words_of
from flatout.bench.statistics import median_interval, spanning
from flatout.compat.torch_needed import require_torch
from flatout.errors import RunFailed, UsageError
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.slow_host import (
    AnySlowReply,
    Level,
    QuotaResponse,
    SlowBlock,
    SlowBlockTimed,
    SlowHostReady,
    SlowHostReport,
    SlowHostRequest,
    SlowResponse,
    What,
)
from flatout.schema.tuning import Interval, Load
from flatout.schema.workloads import Workload, measured_size
from flatout.system.clock import elapsed_s
from flatout.system.duty_cycle import PERIOD_S, duty_cycle
from flatout.system.host_system import LocalSystem
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.load import LoadWatch
from flatout.system.probes.machine import probe
from flatout.system.store.interpreters import resolve_with_flatout
from flatout.system.worker_process import ending_text

_WORKER = "flatout.engine.bench.slow_host"
_START_TIMEOUT_S, _BLOCK_TIMEOUT_S = 300.0, 600.0
# Delays that are tried: of a step's share for each launch, or of a step for the loader.
_OPERATOR_SHARES = (0.25, 0.5, 1.0, 2.0)
_LOADER_SHARES = (0.25, 0.5, 1.0)
_LEAST_DELAY_S, _MOST_DELAY_S = 2e-6, 1e-3
QUOTAS = (0.75, 0.5)
# So many periods of the duty cycle make a block as long as its share says.
_NUM_PERIODS = 10
_MOST_STEPS = 1000


class SlowHostCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout bench slow-host` as data."""

    workload: str
    device: str = "auto"
    is_quick: bool = False
    python: str | None = None
    env: str | None = None


class _Effort(msgspec.Struct, frozen=True, kw_only=True):
    """num_rounds: in each process, in which all levels take turns. block_s: least length."""

    num_processes: int
    num_rounds: int
    block_s: float


_FULL = _Effort(num_processes=3, num_rounds=5, block_s=0.15)
_QUICK = _Effort(num_processes=1, num_rounds=4, block_s=0.05)


class _Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One way of being slower. amount: see Level."""

    what: What
    amount: float

    def block(self, num_steps: int) -> SlowBlock:
        """The request for it."""
        delay_s = self.amount if self.what == "operators" else None
        loader_s = self.amount if self.what == "loader" else 0.0
        return SlowBlock(num_steps=num_steps, delay_s=delay_s, loader_s=loader_s)


_NONE = _Setting(what="none", amount=0.0)
_COUNTED = _Setting(what="operators", amount=0.0)


def slow_host(command: SlowHostCommand) -> Iterator[Doing | SlowHostReport]:
    """Measures; the last value is the report.

    Raises:
        UsageError: unknown-workload, bad-device, device-not-here, torch-not-installed, and for the
            interpreter.
        RunFailed: bench-worker-died.
    """
    [workload] = chosen_workloads([command.workload])
    names = device_names(command.device)
    if len(names) > 1:
        raise UsageError(
            "bad-device",
            f"`--device {command.device}` is more than one device.",
            fix="use auto, cpu, cuda or cuda:1; run the command once for each device",
        )
    python, version = resolve_with_flatout(command.python, command.env)
    machine = probe(LocalSystem(), python)
    require_torch(machine, version)
    device = devices_here(machine, [resolved_device(machine, names[0])])[0][0]
    device_type = device.partition(":")[0]
    size = measured_size(workload, device_type, [device_type], machine.cpu.num_cores)
    request = SlowHostRequest(device=device, size=size, fixed=workload.fixed)
    effort = _QUICK if command.is_quick else _FULL
    blocks = _Blocks()
    watch = LoadWatch()
    for number in range(effort.num_processes):
        for what, done in _one_process(python, request, effort, blocks):
            where = f"process {number + 1} of {effort.num_processes}: {what}"
            yield Doing(what=where, done=(number + done) / effort.num_processes)
    blocks.load = watch.load()
    name = blocks.ready.name or machine.cpu.name or ""
    yield report_of(workload, request, blocks, name, effort)


class _Blocks:
    """What all processes have measured, by setting, in the order of the rounds.

    load: of other programs meanwhile; None if it is not known.
    """

    def __init__(self) -> None:
        self.load: Load | None = None
        self.timed: dict[_Setting, list[SlowBlockTimed]] = {}
        self._ready: SlowHostReady | None = None

    @property
    def is_busy(self) -> bool:
        """Whether other programs disturbed it."""
        return self.load is not None and self.load.is_busy

    @property
    def ready(self) -> SlowHostReady:
        """What the last process has said of itself."""
        assert self._ready is not None
        return self._ready

    def begin(self, ready: SlowHostReady) -> Sequence[_Setting]:
        """The settings; those of the first process are also those of the others."""
        self._ready = ready
        if not self.timed:
            self.timed = {setting: [] for setting in settings_for(ready)}
        return list(self.timed)

    def steps_s(self, setting: _Setting) -> list[float]:
        """Step times."""
        return [block.step_s for block in self.timed[setting]]

    def delayed_s(self, setting: _Setting, device: str) -> list[float]:
        """Step times for delays: on a CPU, where the thread does it all, its own time."""
        if device != "cpu":
            return self.steps_s(setting)
        return [block.thread_s for block in self.timed[setting]]


def settings_for(ready: SlowHostReady) -> list[_Setting]:
    """All ways of being slower that are tried with a step of that length."""
    each_s = ready.step_s / max(ready.num_launches, 1)
    each_s = min(max(each_s, _LEAST_DELAY_S), _MOST_DELAY_S)
    return [
        _NONE,
        _COUNTED,
        *(_Setting(what="operators", amount=share * each_s) for share in _OPERATOR_SHARES),
        *(_Setting(what="loader", amount=share * ready.step_s) for share in _LOADER_SHARES),
        *(_Setting(what="host", amount=share) for share in QUOTAS),
    ]


def _one_process(
    python: str, request: SlowHostRequest, effort: _Effort, blocks: _Blocks
) -> Iterator[tuple[str, float]]:
    yield "starting torch", 0.0
    with JsonProcess(python, _WORKER) as process:
        try:
            process.send(request)
            ready = _received(process, _START_TIMEOUT_S)
            assert isinstance(ready, SlowHostReady)
            settings = blocks.begin(ready)
            for place in range(effort.num_rounds):
                yield f"round {place + 1} of {effort.num_rounds}", place / effort.num_rounds
                # Each round starts with another one: what drifts must not meet the same one.
                first = place % len(settings)
                for setting in (*settings[first:], *settings[:first]):
                    timed = _timed(process, setting, ready, effort.block_s)
                    blocks.timed[setting].append(timed)
        except (ProcessEnded, TimeoutError) as error:
            raise RunFailed(
                "bench-worker-died",
                "the measuring process exited unexpectedly.",
                because=f"it {ending_text(error.exit_code)}"
                if isinstance(error, ProcessEnded)
                else "it did not answer in time",
                fix="close programs that need memory, or measure less: --quick",
                printed=process.printed(),
            ) from error


def _timed(
    process: JsonProcess, setting: _Setting, ready: SlowHostReady, block_s: float
) -> SlowBlockTimed:
    is_host = setting.what == "host"
    least_s = max(block_s, _NUM_PERIODS * PERIOD_S) if is_host else block_s
    num_steps = min(max(1, round(least_s / ready.step_s)), _MOST_STEPS)
    with duty_cycle(ready.pid, setting.amount) if is_host else nullcontext():
        process.send(setting.block(num_steps))
        timed = _received(process, _BLOCK_TIMEOUT_S)
    assert isinstance(timed, SlowBlockTimed)
    return timed


def _received(process: JsonProcess, timeout_s: float) -> Any:
    reply = process.receive(AnySlowReply, until_s=elapsed_s() + timeout_s)
    if isinstance(reply, ProcessFailed):
        raise error_from(reply.finding, reply.exit_code, process.printed())
    return reply


def report_of(
    workload: Workload,
    request: SlowHostRequest,
    blocks: _Blocks,
    name: str,
    effort: _Effort,
) -> SlowHostReport:
    """The fits and what they mean."""
    ready = blocks.ready
    modes_s = _modes_s(blocks, request.device)
    steps_s = blocks.steps_s(_NONE)
    step_s = median_interval(steps_s, effort.num_processes)
    report = SlowHostReport(
        flatout=flatout.__version__,
        workload=workload.name,
        size=request.size.text,
        device=request.device,
        name=name,
        torch=ready.torch,
        num_threads=ready.num_threads,
        data=ready.data,
        settings={
            "num_processes": str(effort.num_processes), "num_rounds": str(effort.num_rounds),
            "block_s": str(effort.block_s), "batch_size": str(request.size.batch_size),
        },
        step_s=spanning(step_s, steps_s) if blocks.is_busy else step_s,
        mode_s=max(median(modes_s), 0.0),
        operators=_response(
            "operators", _answer("operators", blocks, request.device, modes_s), ready.num_launches
        ),
        loader=_response(
            "loader", _answer("loader", blocks, request.device, [0.0] * len(modes_s)), 1
        ),
        quotas=tuple(
            QuotaResponse(
                share=one.amount,
                ratio=paired_ratio(blocks.steps_s(one), steps_s, is_busy=blocks.is_busy),
            )
            for one in blocks.timed
            if one.what == "host"
        ),
        levels=tuple(_level(one, blocks, request.device) for one in blocks.timed),
        words=(),
        warnings=tuple(_warnings(blocks)),
    )  # fmt: skip
    return msgspec.structs.replace(report, words=tuple(words_of(report)))


def _modes_s(blocks: _Blocks, device: str) -> list[float]:
    """What counting an operator takes of the host without a delay, in each round."""
    base, counted = (
        [block.thread_s if device == "cpu" else block.host_s for block in blocks.timed[one]]
        for one in (_NONE, _COUNTED)
    )
    num_launches = max(blocks.ready.num_launches, 1)
    return [(after - before) / num_launches for before, after in zip(base, counted, strict=True)]


def _answer(what: What, blocks: _Blocks, device: str, own_s: Sequence[float]) -> Response:
    levels = {one.amount: blocks.delayed_s(one, device) for one in blocks.timed if one.what == what}
    rest_s = blocks.delayed_s(_NONE, device)
    return response(rest_s, levels, own_s, is_busy=blocks.is_busy)


def _warnings(blocks: _Blocks) -> Iterator[str]:
    if blocks.load is not None and blocks.is_busy:
        yield f"other programs kept {blocks.load.text} busy: the intervals are wider for that"


def _level(setting: _Setting, blocks: _Blocks, device: str) -> Level:
    is_host = setting.what == "host"
    samples = blocks.steps_s(setting) if is_host else blocks.delayed_s(setting, device)
    return Level(what=setting.what, amount=setting.amount, samples=tuple(samples))


def _response(what: What, found: Response, num_per_step: int) -> SlowResponse:
    num = max(num_per_step, 1)
    felt = None
    if found.slope is not None:
        ends = (found.slope.middle, found.slope.low, found.slope.high)
        middle, low, high = (end / num for end in ends)
        felt = Interval(middle=middle, low=low, high=high)
    return SlowResponse(
        what=what,
        num_per_step=num_per_step,
        hidden_s=found.hidden_s,
        slope=found.slope,
        felt=felt,
        is_all_hidden=found.slope is None,
        cost_2us=found.cost if what == "operators" else None,
    )
