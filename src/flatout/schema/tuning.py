"""The candidates, trials, refusals and decisions of a search for the fastest correct recipe.

All ratios are of speeds: 2.0 is twice as fast as what it is compared with. A candidate is a set of
recipe fields; everything else of the recipe stays as it is.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flatout.schema.cpu_topology import Topology
from flatout.schema.finding import Finding
from flatout.schema.recipe import OptimizerImplementation
from flatout.schema.units import counted_text

Numerics = Literal["strict", "default", "fast"]
Mode = Literal["auto", "off", "full"]
Stage = Literal["screen", "final"]
Emit = Literal["code", "lightning", "hf", "accelerate"]


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A user's request to the search for a recipe.

    mode: `off` takes the defaults; `full` searches whatever it costs; `auto` only as far as it
        pays within the run. numerics: how far results may differ by rounding.
    budget_s: what the search may take; None leaves it to flatout. is_only: nothing is trained.
    emit: what is written of the recipe; then the experiment's outline is recorded for it.
    """

    mode: Mode = "off"
    numerics: Numerics = "default"
    budget_s: float | None = None
    is_only: bool = False
    emit: Emit | None = None


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A measured number with its 95 % confidence interval."""

    middle: float
    low: float
    high: float


# Programs that take less than this of the CPUs are always there, and disturb little.
_LEAST_BUSY_CPUS, _LEAST_BUSY_SHARE = 0.3, 0.1


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of other programs on the machine's CPUs during a measurement.

    other_cpus: CPU seconds of all other programs per second; 1.0 is one whole CPU.
    num_cpus: logical CPUs of the machine.
    """

    other_cpus: float
    num_cpus: int

    @property
    def is_busy(self) -> bool:
        """Whether that is enough to make times mean little."""
        return self.other_cpus > max(_LEAST_BUSY_CPUS, _LEAST_BUSY_SHARE * self.num_cpus)

    @property
    def text(self) -> str:
        """The load in words: `1.3 of 2 CPUs`."""
        return f"{self.other_cpus:.1f} of {counted_text(self.num_cpus, 'CPU')}"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One question of the gate: what was measured, what is allowed, and in which words.

    measured, allowed: in the check's own unit, None where there is nothing to measure.
    """

    name: str
    is_passed: bool
    measured: float | None = None
    allowed: float | None = None
    note: str | None = None


class GateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a candidate still computes what the plain step computes."""

    checks: tuple[Check, ...] = ()

    @property
    def is_passed(self) -> bool:
        """Whether every check was passed."""
        return all(check.is_passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that were not."""
        return tuple(check for check in self.checks if not check.is_passed)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the recipe that may make it faster.

    name: what people read (`bf16 autocast`). axis: what it is an alternative of (`precision`).
    changes: recipe fields with their values. why: what it could gain.
    is_process_wide: changes what a process has only once, so it is measured in one of its own.
    is_usual: it gains on most models, so it is part of the one jump for which a slow step has time.
    is_compiled: it is compiled first, so it must pay for that within the run.
    needs: a recipe field that must have been won or set before; without it this does nothing.
    """

    name: str
    axis: str
    changes: dict[str, Any]
    why: str
    is_process_wide: bool = False
    is_usual: bool = False
    is_compiled: bool = False
    needs: str | None = None


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was not tried, and why.

    is_for_time: it could help here, but the search had no time for it.
    """

    name: str
    axis: str
    reason: str
    is_for_time: bool = False


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The next measurement: a candidate and the incumbent, in turns.

    incumbent: recipe fields of what it is compared with; None is the plain loop itself.
    changes: all recipe fields of the candidate, those it takes over from the incumbent included.
    num_processes: in how many pairs of fresh processes; 0 measures in the one that is there.
    effort: how many times as long as others it may be measured.
    deadline_s: of what is compiled, what all of it may take in one fresh process, which measures
        both and asks the gate; None for all others.
    """

    stage: Stage
    candidate: Candidate
    incumbent: dict[str, Any] | None
    changes: dict[str, Any]
    num_processes: int = 0
    effort: int = 1
    deadline_s: float | None = None

    @property
    def keeps_samples(self) -> bool:
        """Whether one of the two keeps samples in memory."""
        paths = [changes.get("data_path") for changes in (self.changes, self.incumbent or {})]
        return "cached" in paths


class Payback(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of compiling, and the number of steps that repays it.

    compile_s: what the first step took beyond others, with empty caches or not.
    after_steps: None where it never does. num_steps: that the run has left.
    """

    compile_s: float
    after_steps: int | None
    num_steps: int

    @property
    def is_worth_it(self) -> bool:
        """Whether it pays, with something to spare: estimates of time are rarely too long."""
        return self.after_steps is not None and 2 * self.after_steps <= self.num_steps


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial.

    speedup: of the candidate over the incumbent. by_process: the same in each pair of processes.
    samples_per_s: of both.
    verdict: None where the gate had nothing to judge. problem: why it could not be measured.
    effect: how it was seen that the setting took effect; None where nothing was seen.
    cost_s: what the trial took. gate_s: of it, the gate.
    excess_bytes: what the candidate took of its GPU beyond what was free there.
    compile_s: what its first step took longer than others, of what is compiled.
    payback: whether that pays within the run; None where nothing was compiled, or gained.
    load: of the machine by other programs in the meantime; None where it was not measured.
    load_by_process: the same in each pair of processes.
    """

    trial: Trial
    cost_s: float
    gate_s: float = 0.0
    speedup: Interval | None = None
    by_process: tuple[Interval, ...] = ()
    samples_per_s: float | None = None
    incumbent_samples_per_s: float | None = None
    verdict: GateVerdict | None = None
    problem: Finding | None = None
    effect: str | None = None
    excess_bytes: int = 0
    compile_s: float | None = None
    payback: Payback | None = None
    load: Load | None = None
    load_by_process: tuple[Load | None, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether other programs disturbed it."""
        return self.load is not None and self.load.is_busy


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of keeping a data set's samples in memory.

    problem: why they cannot be kept, or need not; None where they can.
    num_bytes: of all num_samples, predicted. num_measured: how many are kept while it is measured.
    """

    problem: str | None = None
    num_bytes: int = 0
    num_samples: int = 0
    num_measured: int = 0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of experiment and device, which decide on the candidates.

    device: `cpu` or `cuda`. data_kind: `tensors`, `map-style` or `iterable`.
    has_bf16: the device multiplies bf16 faster than fp32.
    has_volumes: some weights have five dimensions. has_blocks: repeated ones, whose activations
    can be computed again. fixed: recipe fields that the user has set.
    baseline: recipe fields that the plain loop needs to fit into the memory; none if it does.
    data_bytes: of tensors in memory. free_bytes: of the device's memory, what others are to have
    taken off. pinning_problem: why memory cannot be pinned. None: unknown, or there is none.
    has_processes: candidates can be measured in processes of their own. not_retained: why freed
    memory cannot be kept, None if it can. topology: of the CPUs that the process may use.
    forms_to_capture: implementations of the optimizer whose whole update is the device's work.
    not_captured: what of the experiment keeps its steps out of CUDA graphs, if anything does.
    not_compiled: why nothing can be compiled here, None if it can. num_steps: of the run that
    should be made faster, None if no one knows. is_deterministic: it must repeat bit for bit.
    cache: of map-style data, where reading it takes a share of the step that is worth saving.
    defaults: recipe fields in which flatout's defaults differ from a plain loop's settings.
    """

    device: str
    data_kind: str
    batch_size: int
    num_cores: int
    num_threads: int
    has_batch_norm: bool
    has_bf16: bool
    has_tf32: bool
    can_be_fused: bool
    has_foreach: bool
    forms_to_capture: tuple[OptimizerImplementation, ...] = ()
    not_captured: str | None = None
    has_volumes: bool = False
    has_blocks: bool = False
    has_processes: bool = True
    not_retained: str | None = None
    topology: Topology = Topology(problem="not checked")
    fixed: dict[str, Any] = {}
    baseline: dict[str, Any] = {}
    data_bytes: int | None = None
    free_bytes: int | None = None
    pinning_problem: str | None = None
    not_compiled: str | None = None
    num_steps: int | None = None
    is_deterministic: bool = True
    cache: Cache | None = None
    defaults: dict[str, Any] = {}


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One plain step looked at from inside: what decides which candidates can gain anything.

    step_s: a plain step. shares: of data, copy, forward, backward and optimizer in it.
    num_operations: calls of torch's operators in it. has_*: which kinds were among them.
    start_s: what it takes to start a process and to build the experiment in it.
    num_page_faults: pages that a step is given by the kernel; None where that is not known.
    host_share: of a step, how long the host is busy with it; None on a CPU.
    load: of the machine by other programs while the times were taken.
    """

    step_s: float
    start_s: float
    shares: dict[str, float]
    num_operations: int
    has_convolutions: bool
    has_products: bool
    has_attention: bool
    num_page_faults: int | None = None
    host_share: float | None = None
    load: Load | None = None

    @property
    def is_busy(self) -> bool:
        """Whether other programs disturbed it: then its times say little about the step."""
        return self.load is not None and self.load.is_busy


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the ladder from the plain loop to the recipe."""

    name: str
    changes: dict[str, Any]
    samples_per_s: float
    gain: Interval | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search.

    is_default: nothing was faster beyond doubt, so flatout's defaults stay.
    changes: recipe fields of the recipe that holds.
    speedup: of the winner over flatout's defaults, None where these stay.
    over_plain: of the recipe over the plain loop, as it was measured in this process.
    has_measured: False where there was no time for a single trial.
    is_decided: False where something may well be faster, but the measurement cannot show it; such
    an end is not kept.
    load: of the machine by other programs, on average over all trials.
    uncompiled: what was decided before something was compiled on top of it; None where nothing is.
    why: one sentence. search_s: the price. pays_back_after_steps: None where it never does.
    """

    # Not in runs of an older flatout: their `is_plain` was about the plain loop.
    is_default: bool = False
    changes: dict[str, Any]
    rungs: tuple[Rung, ...]
    lost: tuple[Result, ...]
    refused: tuple[Result, ...]
    skipped: tuple[Skip, ...]
    speedup: Interval | None
    why: str
    search_s: float
    pays_back_after_steps: int | None = None
    has_measured: bool = True
    uncompiled: Decision | None = None
    over_plain: Interval | None = None
    is_decided: bool = True
    load: Load | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Of the recipe; None where nothing was measured."""
        if not self.rungs:
            return None
        # The plain loop, and flatout's defaults if they differ.
        defaults = self.rungs[:2][-1].samples_per_s
        return defaults * self.speedup.middle if self.speedup is not None else defaults

    @property
    def is_busy(self) -> bool:
        """Whether other programs disturbed the search."""
        return self.load is not None and self.load.is_busy


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A decision kept for the next training of the same experiment on the same machine.

    identity: what must be the same for it to hold. decided_at: seconds since the epoch, UTC; for
    people. budget_s: what the search might take. is_thorough: that is what a full one takes, or
    more.
    probe: the speed-up over the defaults as a short probe saw it then; later ones are compared
        with it.
    profile: of a plain step; None where it was not kept. is_read_once: in the run that was searched
        for each sample was read once, so keeping samples was not tried.
    """

    identity: dict[str, Any]
    decided_at: float
    is_thorough: bool
    budget_s: float = 0.0
    decision: Decision
    probe: Interval | None = None
    profile: Profile | None = None
    is_read_once: bool = False
