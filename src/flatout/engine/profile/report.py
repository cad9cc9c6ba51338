"""Profiles a session: plain steps, sampled ones, profiled ones, then probes; makes the report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from flatout import __version__
from flatout.engine.profile.compiles import CompileWatch
from flatout.engine.profile.data_probes import data_probes, padding_of
from flatout.engine.profile.events import TraceReport, profile_report
from flatout.engine.profile.lines import LineSampler, count_lines
from flatout.engine.profile.memory import memory_use
from flatout.engine.profile.probes import Probes, StepTimes
from flatout.engine.profile.split import MeasuredSteps
from flatout.engine.profile.step_plan import LEAST_STEPS, StepPlan
from flatout.engine.profile.steps import MarkingTimer, StepLoop
from flatout.engine.profile.trace import (
    BEGIN,
    MOST_LINES,
    mark,
    new_profiler,
    recorded_layers,
    trace_events,
)
from flatout.engine.runtime.step_timer import peak_memory_bytes
from flatout.engine.session.session import Session
from flatout.engine.step.compiled_loss import why_not_compiled
from flatout.engine.tensors.nested import tensors_in
from flatout.engine.training.flop_count import FlopCount
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.profile_protocol import ProfileRequest, Profiling
from flatout.schema.recipe import Recipe, recipe_fields
from flatout.schema.step_profile import (
    LineTime,
    MemoryUse,
    OperatorProbe,
    ProcessorCounts,
    RoofUse,
    StepProfile,
    StepTraits,
)
from flatout.schema.tuning import Load
from flatout.system.clock import elapsed_s, now_text
from flatout.system.load import LoadWatch
from flatout.system.perf_counters import PerfCounters

# Seconds of steps of each kind; a half of the plain ones before the others, and a half after them.
_PLAIN_S, _SAMPLED_S, _PROFILED_S = 1.0, 2.0, 1.0
# Counting may take a hundredth of that: about as long as all the rest.
_FLOPS_WORTH_S = 1500.0
# A step that waits less for its data has nothing to gain there.
_LEAST_DATA_SHARE = 0.05
_MOST_BATCHES = 8


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What the steps have shown."""

    steps: MeasuredSteps
    profiler: torch.profiler.profile
    lines: tuple[LineTime, ...]
    sampled_s: float
    samples_per_step: float
    compiled: tuple[float, float] | None
    load: Load | None
    processor: ProcessorCounts


@dataclass(frozen=True, kw_only=True)
class _Probed:
    """What the probes have shown."""

    probes: tuple[OperatorProbe, ...]
    lines: tuple[LineTime, ...]
    not_cached: str | None
    padding: float | None


class Profiler:
    """Profiles one session.

    Args:
        session: built, with its process settings on.
        request: how many steps, and where the trace goes.
        write: sends what is done now.
        warnings: what a training would warn of.
    """

    def __init__(
        self,
        session: Session,
        request: ProfileRequest,
        write: Callable[[Any], None],
        warnings: Sequence[Finding],
    ) -> None:
        self._session = session
        self._request = request
        self._write = write
        self._warnings = tuple(warnings)
        self._timer = MarkingTimer(session.device)
        self._loop = StepLoop(session, self._timer)
        self._plan = StepPlan(
            plain_s=_PLAIN_S, sampled_s=_SAMPLED_S, profiled_s=_PROFILED_S,
            wanted=request.num_steps,
        )  # fmt: skip
        self._unread: dict[str, str] = {}

    def report(self) -> StepProfile:
        """Everything, but limits and advice.

        Raises:
            Whatever the experiment raises.
        """
        device, experiment = self._session.device, self._session.experiment
        made = self._measured()
        steps = made.steps
        found = profile_report(trace_events(made.profiler), steps)
        memory = self._memory(made.profiler)
        if self._request.trace is not None:
            made.profiler.export_chrome_trace(self._request.trace)
        self._say("running parts of a step by themselves", 0.7)
        has_lines = any(line.part == "step" for line in made.lines)
        probed = self._probed(steps, found, has_lines=has_lines)
        lines = sorted((*made.lines, *probed.lines), key=lambda line: line.seconds, reverse=True)
        return StepProfile(
            flatout=__version__,
            subject=self._request.spec.name,
            at=now_text(),
            torch=str(torch.__version__),
            device=str(device),
            device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
            step_s=steps.step_s,
            profiled_step_s=steps.profiled_s,
            num_profiled=steps.num_profiled,
            overhead=steps.profiled_s / steps.mean_s,
            sampled_step_s=made.sampled_s,
            samples_per_step=made.samples_per_step,
            samples_per_s=made.samples_per_step / steps.mean_s,
            unit=experiment.unit,
            split=found.split,
            phases_s=dict(steps.phases_s),
            operators=found.operators,
            kernels=found.kernels,
            layers=found.layers,
            lines=tuple(lines[:MOST_LINES]),
            memory=memory,
            roofs=self._roofs(found, made.samples_per_step),
            processor=made.processor,
            traits=self._traits(found, made.compiled, probed),
            probes=probed.probes,
            recipe=_values(self._session.recipe),
            settings=_settings(self._request.spec),
            unread=self._unread,
            load=made.load,
            warnings=self._warnings,
        )

    def _measured(self) -> _Made:
        """All steps: half of the plain ones come last, so that a drift is in neither kind."""
        loop = self._loop
        self._say("warming up", 0.1)
        loop.warm_up()
        step_s = sum(loop.timed(LEAST_STEPS)) / LEAST_STEPS
        count = self._plan.num_plain(step_s)
        self._say("measuring steps without a profiler", 0.2)
        watch, compiles = LoadWatch(), CompileWatch()
        num_samples = loop.num_samples
        with PerfCounters() as counters:
            plain, first = _plain_steps(loop, self._timer, count)
            processor = _processor_counts(counters, count)
        num_samples = loop.num_samples - num_samples
        compiled = compiles.per_step(count)
        self._say("sampling lines of Python", 0.35)
        sampler, num_sampled, sampled_s = self._sampled(step_s)
        self._say("profiling", 0.5)
        profiler, num_profiled, profiled_s = self._profiled(step_s)
        last_plain, last = _plain_steps(loop, self._timer, count)
        # Of the same steps as their times: other programs may have slowed down one half.
        phases_s = {
            name: (first.get(name, 0.0) + last.get(name, 0.0)) / 2 for name in first.keys() | last
        }
        steps = MeasuredSteps(
            step_s=(*plain, *last_plain),
            profiled_s=profiled_s,
            num_profiled=num_profiled,
            phases_s=phases_s if self._session.device.type == "cpu" else {},
        )
        return _Made(
            steps=steps,
            profiler=profiler,
            # Sampling makes steps slower, other programs some of them: lines as long as in a
            # plain step.
            lines=_with_counts(sampler.lines(num_sampled * sampled_s / steps.mean_s), loop),
            sampled_s=sampled_s,
            samples_per_step=num_samples / count,
            compiled=compiled,
            load=watch.load(),
            processor=processor,
        )

    def _say(self, what: str, share: float) -> None:
        self._write(Profiling(what=what, share=share))

    def _sampled(self, step_s: float) -> tuple[LineSampler, int, float]:
        """The sampler, its steps, and their mean time."""
        sampler, count = LineSampler(), self._plan.num_sampled(step_s)
        if sampler.problem is not None:
            self._unread["lines"] = sampler.problem
        with sampler.running():
            took_s = sum(self._loop.timed(count))
        return sampler, count, took_s / count

    def _profiled(self, step_s: float) -> tuple[torch.profiler.profile, int, float]:
        """The profiler, its steps, and their mean time."""
        count = self._plan.num_profiled(step_s)
        has_gpu = self._session.device.type == "cuda"
        with new_profiler(has_gpu=has_gpu) as profiler, self._layers():
            # The first one prepares the profiler.
            self._loop.make()
            self._loop.finish()
            self._timer.is_marking = True
            mark(BEGIN)
            began_s = elapsed_s()
            for _ in range(count):
                self._loop.make()
            self._loop.finish()
            took_s = elapsed_s() - began_s
            self._timer.is_marking = False
        return profiler, count, took_s / count

    def _layers(self) -> AbstractContextManager[None]:
        recipe = self._session.recipe
        if recipe.compiled.value in ("loss", "both") or recipe.capture.value != "off":
            self._unread["layers"] = "compiled or captured steps do not call layers one by one"
            return contextlib.nullcontext()
        return recorded_layers(self._session.model)

    def _memory(self, profiler: torch.profiler.profile) -> MemoryUse:
        session = self._session
        base = {"weights and buffers": _num_bytes(session.model.state_dict().values())}
        moments = [
            value
            for optimizer in session.optimizers
            for state in optimizer.state.values()
            for value in state.values()
        ]
        base["optimizer's state"] = _num_bytes(moments)
        if session.facts.data_kind == "tensors" and _is_on(session):
            base["training data"] = _num_bytes(tensors_in(session.train_data))
        use = memory_use(profiler, {name: size for name, size in base.items() if size})
        process_bytes = peak_memory_bytes(session.device)
        return MemoryUse(
            peak_bytes=use.peak_bytes,
            reason=use.reason,
            timeline=use.timeline,
            at_peak=use.at_peak,
            process_bytes=process_bytes,
        )

    def _probed(self, steps: MeasuredSteps, found: TraceReport, *, has_lines: bool) -> _Probed:
        session, loop = self._session, self._loop
        by_part = {one.part: one.seconds or 0.0 for one in found.split}
        data_s, num_samples = by_part["data"], sum(size for _, size in loop.newest)
        phases_s = dict(steps.phases_s) or {"data": data_s, "optimizer": by_part["optimizer"]}
        probes: list[OperatorProbe] = []
        lines: tuple[LineTime, ...] = ()
        not_cached = None
        is_read = session.recipe.data_path.value == "loader"
        is_waiting = data_s > _LEAST_DATA_SHARE * steps.mean_s
        if session.facts.data_kind == "map-style" and is_read and is_waiting:
            probes, lines, not_cached = data_probes(session, data_s, num_samples)
            if session.recipe.loader_workers.value == 0:
                # They were sampled in the steps themselves.
                lines = ()
        padding = self._padding()
        times = StepTimes(step_s=steps.mean_s, phases_s=phases_s)
        probes += Probes(session, loop.newest[0], times).all(padding, has_lines=has_lines)
        return _Probed(probes=tuple(probes), lines=lines, not_cached=not_cached, padding=padding)

    def _padding(self) -> float | None:
        """The share of padding, over some batches."""
        shares = []
        for _ in range(_MOST_BATCHES):
            shares.append(padding_of(self._loop.newest[0][0]))
            if shares[0] is None:
                return None
            self._loop.make()
        known = [share for share in shares if share is not None]
        return sum(known) / len(known)

    def _roofs(self, found: TraceReport, samples_per_step: float) -> RoofUse:
        count = FlopCount(self._session)
        count.see(self._loop.newest)
        line = count.line(_FLOPS_WORTH_S, step_s=0.0, is_last=True)
        flops, reasons = None, {}
        if line is not None and line.flops_per_sample is not None:
            flops = line.flops_per_sample * samples_per_step
        else:
            reason = line.reason if line is not None else None
            reasons["flops"] = reason or "the FLOPs of this step cannot be counted"
        return RoofUse(
            flops=flops,
            num_bytes=found.memory_bytes,
            dtype=self._session.recipe.precision.value,
            reasons=reasons,
        )

    def _traits(
        self, found: TraceReport, compiled: tuple[float, float] | None, probed: _Probed
    ) -> StepTraits:
        session = self._session
        facts = session.facts
        return StepTraits(
            device=session.device.type,
            batch_size=facts.batch_size,
            data_kind=facts.data_kind,
            dtypes=tuple(sorted({str(one.dtype)[6:] for one in session.model.parameters()})),
            num_cores=facts.num_cores,
            padding=probed.padding,
            num_recompiles=compiled[0] if compiled else None,
            compile_s=compiled[1] if compiled else None,
            not_compiled=why_not_compiled(session.device),
            not_cached=probed.not_cached,
            has_own_step=facts.has_own_step,
            num_operators=found.num_operators,
            pageable_copy_s=found.pageable_copy_s,
            num_syncs=found.num_syncs,
        )


def _plain_steps(
    loop: StepLoop, timer: MarkingTimer, count: int
) -> tuple[list[float], dict[str, float]]:
    """Seconds of each of so many steps, and their mean seconds in each part."""
    # What was done since the last step is no part of these.
    timer.mark("other")
    before = timer.split_s()
    step_s = loop.timed(count)
    return step_s, _per_step(timer.split_s(), before, count)


def _with_counts(lines: Sequence[LineTime], loop: StepLoop) -> tuple[LineTime, ...]:
    """Lines in loops with how often they run in a step."""
    files = {line.file for line in lines if _is_in_loop(line)}
    if not files:
        return tuple(lines)
    counts = count_lines(loop.make, files)
    return tuple(
        msgspec.structs.replace(line, count=counts.get((line.file, line.line)))
        if _is_in_loop(line)
        else line
        for line in lines
    )


def _is_in_loop(line: LineTime) -> bool:
    return line.loop is not None and line.part == "step"


def _processor_counts(counters: PerfCounters, num_steps: int) -> ProcessorCounts:
    counts = {name: count / num_steps for name, count in counters.taken().items()}
    return ProcessorCounts(
        cycles=counts.get("cycles"),
        instructions=counts.get("instructions"),
        cache_misses=counts.get("cache_misses"),
        page_faults=counts.get("page_faults"),
        reasons=counters.reasons,
    )


def _settings(spec: ExperimentSpec) -> dict[str, str]:
    own = {name: str(value) for name, value in spec.parameters.items()}
    return own | {"seed": str(spec.seed)}


def _values(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name).value for name in recipe_fields()}


def _per_step(
    after: Mapping[str, float], before: Mapping[str, float], num_steps: int
) -> dict[str, float]:
    return {
        name: (seconds - before.get(name, 0.0)) / num_steps
        for name, seconds in after.items()
        if seconds > before.get(name, 0.0)
    }


def _num_bytes(values: Iterable[Any]) -> int:
    return sum(one.numel() * one.element_size() for one in values if isinstance(one, torch.Tensor))


def _is_on(session: Session) -> bool:
    return session.device.type == "cpu" or session.recipe.data_path.value == "resident"
