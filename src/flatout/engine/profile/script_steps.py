"""Steps of a loop that is not flatout's, profiled from within: of a script, a notebook, a callback.

The loop says when a step has ended, and when it waits for a batch. Runs in any interpreter that has
torch and msgspec.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Concatenate, Literal, ParamSpec

import msgspec
import torch

from flatout import __version__
from flatout.engine.profile.events import profile_report
from flatout.engine.profile.lines import LineSampler, is_user_code
from flatout.engine.profile.memory import memory_use
from flatout.engine.profile.split import MeasuredSteps
from flatout.engine.profile.step_plan import LEAST_STEPS, StepPlan, stretched
from flatout.engine.profile.trace import (
    BEGIN,
    MOST_LINES,
    mark,
    new_profiler,
    recorded_layers,
    trace_events,
)
from flatout.schema.step_profile import LineTime, RoofUse, StepProfile, StepTraits
from flatout.schema.units import counted_text
from flatout.system.clock import elapsed_s, now_text
from flatout.system.usable_cpus import num_usable_cpus

# Seconds of steps of each kind: fewer than of an experiment, since the program waits for them.
_WARM_UP_S, _PLAIN_S, _SAMPLED_S, _PROFILED_S = 0.5, 0.7, 1.0, 1.0
_NO_SAMPLES = "the batches do not come from a DataLoader of torch with a batch size"
_PROFILES_ITSELF = "the program uses torch.profiler itself, and torch has one at a time"
Phase = Literal["warm-up", "plain", "sampled", "preparing", "profiled", "over"]
_Given = ParamSpec("_Given")


@dataclass(kw_only=True)
class _Loader:
    """What an iterator of a DataLoader says of itself."""

    batch_size: int | None = None
    workers: int = 0
    is_pinned: bool = False
    kind: str | None = None

    def settings(self) -> dict[str, str]:
        """As the report shows them."""
        if self.kind is None:
            return {}
        return {
            "loader workers": str(self.workers),
            "pinned memory": "yes" if self.is_pinned else "no",
            "CPUs": str(num_usable_cpus()),
        }


@dataclass(kw_only=True)
class _PlainSteps:
    """Steps without a profiler. data_s: waits for batches; num_batches: of all steps together."""

    step_s: list[float] = field(default_factory=list)
    data_s: float = 0.0
    num_batches: int = 0

    @property
    def mean_s(self) -> float:
        """Seconds of a step."""
        return sum(self.step_s) / len(self.step_s)

    def phases_s(self) -> dict[str, float]:
        """On a CPU, seconds of the parts of a step: under a profiler, their shares are others."""
        if torch.cuda.is_initialized() or not self.num_batches:
            return {}
        data_s = min(self.data_s / len(self.step_s), self.mean_s)
        return {"data": data_s, "step": self.mean_s - data_s}

    def samples_per_step(self, loader: _Loader) -> float | None:
        """As the loader's size of batches says; None where it has none."""
        if loader.batch_size is None or not self.num_batches:
            return None
        return loader.batch_size * self.num_batches / len(self.step_s)


def _harmless(
    method: Callable[Concatenate[StepRecorder, _Given], None],
) -> Callable[Concatenate[StepRecorder, _Given], None]:
    """Nothing that goes wrong in it reaches the loop: it costs the report."""

    @functools.wraps(method)
    def called(self: StepRecorder, /, *values: _Given.args, **named: _Given.kwargs) -> None:
        try:
            method(self, *values, **named)
        except Exception as error:  # noqa: BLE001 - the training is worth more than its profile
            self.abandon(f"{type(error).__name__}: {error}")

    return called


class StepRecorder:
    """Takes the steps of one loop, phase by phase, and makes a report of them.

    has_report: whether it was made. num_made: steps so far. problem: why it has been abandoned.

    Args:
        subject: what is profiled, as the report names it.
        report: called with the report, in the loop's thread.
        num_steps: under the profiler; None chooses by their time.
        trace: path of a file for the trace.
    """

    def __init__(
        self,
        subject: str,
        report: Callable[[StepProfile], None],
        *,
        num_steps: int | None = None,
        trace: str | None = None,
    ) -> None:
        self._subject = subject
        self._report = report
        self._plan = StepPlan(
            plain_s=_PLAIN_S, sampled_s=_SAMPLED_S, profiled_s=_PROFILED_S, wanted=num_steps
        )  # fmt: skip
        self._trace = trace
        self.phase: Phase = "warm-up"
        self.has_report = False
        self.num_made = 0
        self.problem: str | None = None
        self._thread = threading.get_ident()
        self._optimizer: Any = None
        self._loader = _Loader()
        self._open = contextlib.ExitStack()
        self._profiler: torch.profiler.profile | None = None
        self._sampler: LineSampler | None = None
        self._lines: tuple[LineTime, ...] = ()
        self._plain = _PlainSteps()
        self._sampled_s = self._paused_s = 0.0
        self._began_s = self._last_s = elapsed_s()
        self._requested_s: float | None = None
        self._num = 0
        self._is_disturbed = False
        self._unread: dict[str, str] = {}
        self._places: set[tuple[str, int]] = set()

    def too_short_text(self) -> str | None:
        """Why there is no report, of a loop that has ended; None if there is one."""
        if self.has_report:
            return None
        if self.problem is not None:
            return f"flatout: no profile: {self.problem}"
        made = counted_text(self.num_made, "step")
        return f"flatout: no profile of {made}: it needs about 3 seconds of steps, at least 11"

    @_harmless
    def step_ended(self, optimizer: Any = None) -> None:
        """Ends a step; optimizer: that has made it. Another one's steps are part of this."""
        if self.phase == "over" or threading.get_ident() != self._thread:
            return
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return
        now_s = elapsed_s()
        self.num_made += 1
        if self.phase == "profiled":
            mark("step")
        if not self._is_disturbed:
            self._num += 1
            if self.phase == "plain":
                self._plain.step_s.append(now_s - self._last_s)
        elif self.phase == "sampled" and self._sampler is not None:
            self._paused_s += now_s - self._last_s
            self._open.enter_context(self._sampler.running())
        self._is_disturbed = False
        self._last_s = now_s
        if self._is_phase_over():
            self._next_phase()
            self._last_s = elapsed_s()

    @_harmless
    def batch_requested(self, iterator: Any = None) -> None:
        """The loop begins to wait for a batch. iterator: of a DataLoader."""
        if self.phase == "over" or threading.get_ident() != self._thread:
            return
        if not torch.is_grad_enabled():
            # A validation: it is not part of a step, and what was profiled before it is enough.
            if self.phase == "profiled" and self._num > 0:
                self._next_phase(self._last_s)
            elif self.phase == "sampled" and not self._is_disturbed:
                # Until the next step has ended.
                self._open.close()
            self._is_disturbed = True
            return
        if iterator is not None:
            self._loader = _loader_of(iterator)
        self._requested_s = elapsed_s()
        if self.phase == "profiled":
            mark("step")

    @_harmless
    def batch_arrived(self, *, is_batch: bool = True) -> None:
        """The wait is over; is_batch: False at the end of an epoch."""
        if self._requested_s is None or threading.get_ident() != self._thread:
            return
        if self.phase == "profiled":
            mark("data")
        elif self.phase == "plain" and not self._is_disturbed:
            self._plain.data_s += elapsed_s() - self._requested_s
            self._plain.num_batches += is_batch
        self._requested_s = None

    @_harmless
    def stop(self) -> None:
        """Ends it early: with a report if there are profiled steps, else with nothing."""
        if self.phase == "over":
            return
        if self.phase == "profiled" and self._num > 0:
            self._next_phase(self._last_s)
            return
        self.phase = "over"
        self._open.close()

    def abandon(self, problem: str) -> None:
        """Ends it without a report, whatever state it is in."""
        self.phase, self.problem = "over", problem
        with contextlib.suppress(Exception):
            self._open.close()

    def _is_phase_over(self) -> bool:
        if self.phase == "warm-up":
            is_long = elapsed_s() - self._began_s >= _WARM_UP_S
            return self._num >= LEAST_STEPS and is_long
        if self.phase == "plain":
            is_enough = self._num >= LEAST_STEPS
            return is_enough and self._num >= self._plan.num_plain(self._plain.mean_s)
        if self.phase == "sampled":
            return self._num >= self._plan.num_sampled(self._plain.mean_s)
        if self.phase == "preparing":
            return True
        return self._num >= self._plan.num_profiled(self._plain.mean_s)

    def _next_phase(self, ended_s: float | None = None) -> None:
        """Ends a phase and begins the next one. ended_s: of its last step; None: just now."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now_s = elapsed_s()
        if self.phase == "warm-up":
            self.phase = "plain"
            self._places = _user_places()
        elif self.phase == "plain":
            # The device may have been behind its host.
            whole_s = sum(self._plain.step_s) + now_s - self._last_s
            self._plain.step_s = stretched(self._plain.step_s, whole_s)
            self.phase = "sampled"
            self._sampler = LineSampler()
            if self._sampler.problem is not None:
                self._unread["lines"] = self._sampler.problem
            self._open.enter_context(self._sampler.running())
        elif self.phase == "sampled":
            assert self._sampler is not None
            self._open.close()
            self._sampled_s = (now_s - self._began_s - self._paused_s) / self._num
            # Sampling makes steps slower: their lines are as long as in the others.
            num_plain = self._num * max(1.0, self._sampled_s / self._plain.mean_s)
            self._lines = _outside_of_loops(self._sampler.lines(num_plain), self._places)
            self.phase = "preparing"
            self._begin_profile()
        elif self.phase == "preparing":
            self.phase = "profiled"
            mark(BEGIN)
        else:
            ended_s = now_s if ended_s is None else ended_s
            self._finish((ended_s - self._began_s) / self._num)
            return
        self._num = 0
        self._began_s = elapsed_s()

    def _begin_profile(self) -> None:
        if torch._C._autograd._profiler_enabled():
            self.abandon(_PROFILES_ITSELF)
            return
        self._profiler = new_profiler(has_gpu=torch.cuda.is_initialized())
        self._open.enter_context(self._profiler)
        if _is_compiling():
            self._unread["layers"] = "compiled steps do not call layers one by one"
        else:
            self._open.enter_context(recorded_layers())

    def _finish(self, profiled_s: float) -> None:
        assert self._profiler is not None
        self.phase = "over"
        self._open.close()
        steps = MeasuredSteps(
            step_s=tuple(self._plain.step_s),
            profiled_s=profiled_s,
            num_profiled=self._num,
            phases_s=self._plain.phases_s(),
        )
        if self._trace is not None:
            self._profiler.export_chrome_trace(self._trace)
        profile = self._profile(self._profiler, steps)
        self.has_report = True
        self._report(profile)

    def _profile(self, profiler: torch.profiler.profile, steps: MeasuredSteps) -> StepProfile:
        found = profile_report(trace_events(profiler), steps)
        device, dtypes, base = _held_by(self._optimizer)
        samples = self._plain.samples_per_step(self._loader)
        if samples is None:
            self._unread["samples_per_step"] = _NO_SAMPLES
        return StepProfile(
            flatout=__version__,
            subject=self._subject,
            at=now_text(),
            torch=str(torch.__version__),
            device=device,
            device_name=torch.cuda.get_device_name() if device.startswith("cuda") else None,
            step_s=steps.step_s,
            profiled_step_s=steps.profiled_s,
            num_profiled=steps.num_profiled,
            overhead=steps.profiled_s / steps.mean_s,
            sampled_step_s=self._sampled_s,
            samples_per_step=samples,
            samples_per_s=samples / steps.mean_s if samples is not None else None,
            split=found.split,
            operators=found.operators,
            kernels=found.kernels,
            layers=found.layers,
            lines=self._lines[:MOST_LINES],
            memory=memory_use(profiler, base),
            roofs=RoofUse(
                num_bytes=found.memory_bytes,
                reasons={"flops": "they are counted for experiments of flatout only"},
            ),
            traits=StepTraits(
                device=device.partition(":")[0],
                batch_size=self._loader.batch_size,
                data_kind=self._loader.kind,
                dtypes=dtypes,
                num_operators=found.num_operators,
                num_syncs=found.num_syncs,
                pageable_copy_s=found.pageable_copy_s,
            ),
            settings=self._loader.settings(),
            unread=self._unread,
        )


def _user_places() -> set[tuple[str, int]]:
    """The lines of the user's code that are being executed: they lead to the optimizer's step."""
    places = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            places.add((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places


def _outside_of_loops(
    lines: tuple[LineTime, ...], places: set[tuple[str, int]]
) -> tuple[LineTime, ...]:
    """The lines, without the loops that make the steps: what is in one of these is in no other."""
    loops = {(line.file, line.loop) for line in lines if (line.file, line.line) in places}
    return tuple(
        msgspec.structs.replace(line, loop=None) if (line.file, line.loop) in loops else line
        for line in lines
    )


def _loader_of(iterator: Any) -> _Loader:
    """The settings of a DataLoader, by its iterator's attributes, as far as there are any."""
    sampler = getattr(iterator, "_index_sampler", None)
    size = getattr(sampler, "batch_size", None)
    kind = getattr(iterator, "_dataset_kind", None)
    return _Loader(
        batch_size=size if isinstance(size, int) else None,
        workers=int(getattr(iterator, "_num_workers", 0) or 0),
        is_pinned=bool(getattr(iterator, "_pin_memory", False)),
        kind={0: "map-style", 1: "iterable"}.get(kind) if isinstance(kind, int) else None,
    )


def _held_by(optimizer: Any) -> tuple[str, tuple[str, ...], dict[str, int]]:
    """The device of an optimizer's weights, their types, and the bytes of weights and state."""
    groups = getattr(optimizer, "param_groups", None) or []
    weights = [one for group in groups for one in group["params"] if isinstance(one, torch.Tensor)]
    if not weights:
        return ("cuda:0" if torch.cuda.is_initialized() else "cpu"), (), {}
    state = [
        value
        for values in optimizer.state.values()
        if isinstance(values, Mapping)
        for value in values.values()
        if isinstance(value, torch.Tensor)
    ]
    sizes = {
        name: sum(one.numel() * one.element_size() for one in tensors)
        for name, tensors in {"weights": weights, "optimizer's state": state}.items()
    }
    dtypes = tuple(sorted({str(one.dtype).removeprefix("torch.") for one in weights}))
    return str(weights[0].device), dtypes, {name: size for name, size in sizes.items() if size}


def _is_compiling() -> bool:
    """Whether torch has compiled something: hooks on layers would have it compiled once more."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    return bool(counters and counters["stats"].get("unique_graphs"))


class ObservedLoop:
    """Has DataLoaders and optimizers of torch report to a recorder while the value is open.

    Once the recorder has its report, it closes itself as soon as the loop asks for a batch.

    closed: someone else says when a step has ended, and is called when that is over.
    """

    def __init__(self, recorder: StepRecorder, *, closed: Callable[[], None] | None = None) -> None:
        self._recorder = recorder
        self._closed = closed
        self._handle: Any = None
        self._before: Any = None

    def __enter__(self) -> ObservedLoop:
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        recorder, before = self._recorder, _BaseDataLoaderIter.__next__

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            recorder.step_ended(optimizer)

        def timed_next(iterator: Any) -> Any:
            if recorder.phase == "over":
                self.close()
                return before(iterator)
            recorder.batch_requested(iterator)
            try:
                batch = before(iterator)
            except BaseException:
                recorder.batch_arrived(is_batch=False)
                raise
            recorder.batch_arrived()
            return batch

        if self._closed is None:
            self._handle = register_optimizer_step_post_hook(stepped)
        self._before = before
        setattr(_BaseDataLoaderIter, "__next__", timed_next)  # noqa: B010 - mypy compares types
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes everything back. Not within a step: torch goes through its hooks there."""
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._before is not None:
            _BaseDataLoaderIter.__next__ = self._before  # type: ignore[method-assign]
            self._before = None
            if self._closed is not None:
                self._closed()
