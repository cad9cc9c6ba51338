"""What `flatout profile` finds: where the time of a training step goes, and what to change.

All seconds are of one step, on average, as it is without a profiler, unless they say otherwise.
Unknown is None, and a reason is in a field of that name or in `StepProfile.unread`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flatout.schema.finding import Finding, page_command
from flatout.schema.tuning import Interval, Load

STEP_PROFILE_VERSION = 1

# data: waiting for the next batch, or reading it. copy: from the host to the device.
# host: Python and whatever else of the host the device waits for. launch: gaps between kernels
# while the host starts them. matrix, convolution, memory, optimizer, communication: kernels, on
# a CPU operators. sync: the host waits for the device. idle: the device has nothing to do, and the
# host is not the reason.
Part = Literal[
    "data", "copy", "host", "launch", "matrix", "convolution", "memory", "optimizer",
    "communication", "sync", "idle",
]  # fmt: skip
# In the order in which they are shown.
PART_NAMES: dict[Part, str] = {
    "data": "data wait", "copy": "copies to the GPU", "matrix": "matrix products",
    "convolution": "convolutions", "memory": "memory-bound", "optimizer": "optimizer",
    "communication": "communication", "host": "host work", "launch": "launch gaps",
    "sync": "synchronization", "idle": "idle",
}  # fmt: skip
PARTS: tuple[Part, ...] = tuple(PART_NAMES)


class SplitPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a step. All of them together are the step. seconds: None with its reason."""

    part: Part
    seconds: float | None
    reason: str | None = None


class OperatorTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator of a step, or a layer of the model: a row of the table.

    name: `aten::addmm`, or a layer's path (`layers.0.conv1`). calls: in a step.
    self_s, total_s: of the CPU, without and with what it calls. device_s: its kernels, None on a
    CPU; device_total_s: with those of what it calls.
    shapes: of its inputs, the most frequent ones. layer: that takes most of its time.
    part: of the split; None for a layer. allocated_bytes: less what it has freed.
    flops: in a step, as torch's profiler estimates them. dtype: of its first input.
    """

    name: str
    calls: float
    self_s: float
    total_s: float
    device_s: float | None = None
    device_total_s: float | None = None
    shapes: str = ""
    layer: str = ""
    part: Part | None = None
    allocated_bytes: int | None = None
    flops: float | None = None
    dtype: str = ""


class LineTime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the user's code, and the time for which the host was in it or in what it calls.

    From samples of the main thread's stack, taken in steps without a profiler.
    text: the line, stripped. part: `data` where it reads samples, else `step`.
    through: the innermost function of a library that it calls most (`torch/_tensor.py: backward`).
    loop: first line of the loop that it is in; None if it is in none. count: how often it runs in a
    step; counted in loops only. is_in_model: in the forward pass of a module, or a call of one.
    """

    file: str
    line: int
    function: str
    seconds: float
    text: str = ""
    part: Literal["data", "step"] = "step"
    through: str = ""
    num_samples: int = 0
    loop: int | None = None
    count: int | None = None
    is_in_model: bool = False

    @property
    def place(self) -> str:
        """`train.py:41`."""
        return f"{self.file}:{self.line}"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds memory at the peak: `weights`, `optimizer`, or a layer's or operator's tensors."""

    name: str
    num_bytes: int


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory of tensors during a step.

    timeline: (seconds since the step began, by the profiler's clock; bytes). peak_bytes: the most.
    at_peak: the largest holders first, and all of them together are the peak.
    process_bytes: the most that the process has held; on a GPU its allocator.
    """

    peak_bytes: int | None = None
    reason: str | None = None
    timeline: tuple[tuple[float, int], ...] = ()
    at_peak: tuple[Held, ...] = ()
    process_bytes: int | None = None


class RoofUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step's FLOP and bytes against what `flatout bench limits` has measured here.

    flops: of forward and backward; bytes: that memory-bound operators read and write, at least.
    flop_limit, byte_limit: per second. flop_share, byte_share: reached, while such kernels run.
    reasons: field -> why it is None.
    """

    flops: float | None = None
    num_bytes: float | None = None
    dtype: str = ""
    flop_limit: float | None = None
    byte_limit: float | None = None
    flop_share: float | None = None
    byte_share: float | None = None
    step_flop_share: float | None = None
    is_limit_doubtful: bool = False
    reasons: dict[str, str] = {}


# Not an id of advice: forward and backward of the model alone, from which advice about lines takes
# the time of what is outside of it.
MODEL_ALONE = "model-alone"
# What belongs to no layer: the loss, and what is done to a batch before the model has it.
OUTSIDE = "(outside of layers)"


class ProcessorCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the processor counts in a step, of all threads, without the kernel.

    cache_misses: as the processor's generic event has them: of the last cache on Intel's, of L2 on
    AMD's, of L1 on Arm's. reasons: field -> why it is None.
    """

    cycles: float | None = None
    instructions: float | None = None
    cache_misses: float | None = None
    page_faults: float | None = None
    reasons: dict[str, str] = {}

    @property
    def instructions_per_cycle(self) -> float | None:
        """Of a core that waits for its memory it is below 1, of one that computes 2 and more."""
        if not self.cycles or self.instructions is None:
            return None
        return self.instructions / self.cycles


class OperatorProbe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operators that a change concerns, run by themselves with and without it.

    advice: what it is for. affected_s: their time in a step. ratio: of their time with the change
    to that without it. changes: recipe fields. batch_size: for a larger batch, where `ratio` is per
    sample. note: what was run. problem: why there is no ratio.
    """

    advice: str
    affected_s: float
    ratio: Interval | None = None
    changes: dict[str, Any] = {}
    batch_size: int | None = None
    note: str = ""
    problem: str | None = None


class StepTraits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a training besides times; advice depends on it. None: unknown.

    device: `cpu` or `cuda`. batch_size: samples of an update. data_kind: see Setting.
    dtypes: of the model's weights.
    num_cores: physical ones that the process may use. padding: share of the token positions in a
    batch that hold only padding, as far as cutting batches at their longest sample or sorting them
    by length would save them. num_recompiles: of torch.compile, in a step; compile_s: their time.
    not_compiled, not_cached: why that is impossible here; None where it is possible.
    num_operators: calls in a step that start work, without those of the optimizer. num_syncs: in
    which the host waits for it.
    has_own_step: the experiment makes its updates itself.
    batch_parameter: of the experiment, that sets batch_size.
    """

    device: str = "cpu"
    batch_size: int | None = None
    data_kind: str | None = None
    dtypes: tuple[str, ...] = ()
    num_cores: int | None = None
    padding: float | None = None
    num_recompiles: float | None = None
    compile_s: float | None = None
    not_compiled: str | None = None
    not_cached: str | None = None
    has_own_step: bool = False
    num_operators: float | None = None
    pageable_copy_s: float | None = None
    num_syncs: float | None = None
    batch_parameter: str | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that would make the training faster.

    id: the same for the same cause (`unfused-optimizer`). problem: one sentence; because: figures.
    speedup: predicted, of samples per second. basis: how it was predicted.
    changes: recipe fields that do it; none where only the user's code can. fix: in words.
    lines: of the user's code to change. changes_result: other numbers are computed.
    measured: the speed-up that `--prove` has found; not_proved: why there is none.
    """

    id: str
    problem: str
    because: str
    fix: str
    speedup: Interval
    basis: str
    changes: dict[str, Any] = {}
    lines: tuple[LineTime, ...] = ()
    changes_result: str | None = None
    measured: Interval | None = None
    not_proved: str | None = None

    @property
    def verdict(self) -> str | None:
        """What its measurement says against it, where the whole interval does."""
        is_slower = self.measured is not None and self.measured.high < 1
        return "slower: do not use it" if is_slower else None

    @property
    def see(self) -> str:
        """The command that shows its page."""
        return page_command(self.id)


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `flatout profile`.

    subject: the experiment's name, or the script. at: when, as bench files have it.
    step_s: each step without a profiler; its mean is what `split` adds up to.
    profiled_step_s: mean of the num_profiled steps with it; overhead: that over the mean of step_s.
    sampled_step_s: mean step while the lines were sampled; None where they were not.
    samples_per_step: mean; None where no one knows. recipe: fields with their values; empty for a
    script. tuned: those of them that a search has found before, as `flatout train` uses them.
    not_tuned: why not all that it has found is used; None where it is.
    settings: what else was chosen, in words.
    phases_s: of data, copy, forward, backward and optimizer, by flatout's own clock in plain
    steps; empty where they are not known, as on a GPU.
    operators, kernels, layers: every row, the largest self time first. lines: likewise.
    warnings: of what would disturb a training, too.
    """

    version: int = STEP_PROFILE_VERSION
    flatout: str
    subject: str
    at: str
    torch: str
    device: str
    device_name: str | None = None
    step_s: tuple[float, ...]
    profiled_step_s: float
    num_profiled: int
    overhead: float
    sampled_step_s: float | None = None
    samples_per_step: float | None = None
    samples_per_s: float | None = None
    unit: str = "samples"
    split: tuple[SplitPart, ...]
    phases_s: dict[str, float] = {}
    operators: tuple[OperatorTime, ...] = ()
    kernels: tuple[OperatorTime, ...] = ()
    layers: tuple[OperatorTime, ...] = ()
    lines: tuple[LineTime, ...] = ()
    memory: MemoryUse = MemoryUse()
    roofs: RoofUse = RoofUse()
    processor: ProcessorCounts = ProcessorCounts()
    traits: StepTraits = StepTraits()
    probes: tuple[OperatorProbe, ...] = ()
    recipe: dict[str, Any] = {}
    tuned: dict[str, Any] = {}
    not_tuned: str | None = None
    settings: dict[str, str] = {}
    unread: dict[str, str] = {}
    load: Load | None = None
    warnings: tuple[Finding, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def mean_step_s(self) -> float:
        """Seconds of a step without a profiler, the mean."""
        return sum(self.step_s) / len(self.step_s)

    def seconds(self, part: Part) -> float:
        """Seconds of a part in a step; 0 where it does not apply."""
        return next((one.seconds or 0.0 for one in self.split if one.part == part), 0.0)

    def share(self, part: Part) -> float:
        """The same as a share of the step."""
        return self.seconds(part) / self.mean_step_s
