"""The lines of a run's folder: what the engine appends and everybody else only reads.

`events.jsonl` is the run's history and is never cut. `metrics.jsonl` follows the training; on
resume it is cut back to the checkpoint, since what came after is computed again.
Epochs are counted from 0. Times are seconds since the epoch, UTC. `step` counts optimizer updates
from the run's beginning.
"""

from __future__ import annotations

import msgspec

from flatout.schema.code_outline import CodeOutline
from flatout.schema.dry_run import DryRunResult
from flatout.schema.finding import Finding
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.recipe import Recipe
from flatout.schema.tuning import Decision, Profile, Result, Trial


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The time of writing, and the updates made by then."""

    at: float
    step: int


class Started(Line, frozen=True, kw_only=True, tag="started"):
    """A worker has taken up the run, from step 0 or from a checkpoint.

    num_steps, num_epochs, steps_per_epoch, num_samples: None where the data does not tell.
    num_trained: of the parameters, those that are not frozen; None in runs of an older flatout.
    unit: what a sample is, for rates. num_ranks: processes that train it together.
    versions: what must be equal for a bit-exact repetition (libraries, processor, device).
    on, python, leave_free_bytes: as they were requested this time; see schema/change.py.
    best: the metric that decides which weights are kept; None without validation data, and in runs
    of an older flatout.
    """

    pid: int
    num_steps: int | None
    num_epochs: int | None
    steps_per_epoch: int | None
    num_parameters: int
    num_samples: int | None
    num_trained: int | None = None
    unit: str = "samples"
    resumed: bool = False
    versions: dict[str, str] = {}
    num_ranks: int = 1
    on: str | None = None
    python: str | None = None
    leave_free_bytes: int | None = None
    best: str | None = None


class RecipeSet(Line, frozen=True, kw_only=True, tag="recipeset"):
    """The recipe from the next step on. Synced before that step begins.

    adaptation: why, where the training has decided it because memory ran out.
    """

    recipe: Recipe
    adaptation: OomAdaptation | None = None


class Extended(Line, frozen=True, kw_only=True, tag="extended"):
    """A new length of the run, from here on: in epochs or steps, in all."""

    epochs: int | None = None
    steps: int | None = None


class SharesChecked(Line, frozen=True, kw_only=True, tag="shareschecked"):
    """Whether the shares of a batch that ranks take compute what the whole batch does.

    reason: why they do not, or why it could not be checked; None where they do.
    is_checked: False where it could not be.
    """

    reason: str | None = None
    is_checked: bool = True


class FileChanged(Line, frozen=True, kw_only=True, tag="filechanged"):
    """A new text of the experiment file, with which the run continues from here.

    before, after: sha256 of both texts. kept: the file in the run's folder that has the one before;
    None where there was none. diff: as `diff -u` gives it. fits: what was taken over, in words.
    """

    before: str | None
    after: str
    kept: str | None
    diff: str
    fits: tuple[str, ...] = ()


class DryRan(Line, frozen=True, kw_only=True, tag="dryran"):
    """One batch of each kind was tried, and nothing trained: that was all that was wanted."""

    result: DryRunResult


class Fetched(Line, frozen=True, kw_only=True, tag="fetched"):
    """A download of a data set has come this far."""

    name: str
    done_bytes: int
    total_bytes: int


class Warned(Line, frozen=True, kw_only=True, tag="warned"):
    """Something worth knowing; training continues."""

    finding: Finding


class Profiled(Line, frozen=True, kw_only=True, tag="profiled"):
    """The search for a recipe has looked at a plain step, and begins.

    num_candidates: how many there are to try.
    budget_s: what the search may take.
    """

    profile: Profile
    num_candidates: int
    budget_s: float


class Trying(Line, frozen=True, kw_only=True, tag="trying"):
    """A trial of the search begins."""

    trial: Trial


class Tried(Line, frozen=True, kw_only=True, tag="tried"):
    """A trial of the search has ended."""

    result: Result


class Tuned(Line, frozen=True, kw_only=True, tag="tuned"):
    """The search for a recipe has ended; is_from_cache: it was found before and still holds."""

    decision: Decision
    unit: str = "samples"
    is_from_cache: bool = False


class Outlined(Line, frozen=True, kw_only=True, tag="outlined"):
    """The facts of an experiment for a plain loop, if one is wanted."""

    outline: CodeOutline


class Checkpointed(Line, frozen=True, kw_only=True, tag="checkpointed"):
    """A checkpoint is on the disk: how long training paused for its copy, how long writing
    took next to the training, and how much time the training lost by it.

    is_copied: False where there was no memory for a copy: training has waited while it was written.
    """

    stall_s: float
    write_s: float
    slowdown_s: float
    size_bytes: int
    is_copied: bool = True


class FlopsCounted(Line, frozen=True, kw_only=True, tag="flopscounted"):
    """FLOPs of the training of a sample: of products, convolutions and attention, in the forward
    and the backward pass. reason: why they could not be counted; then they are None.
    """

    flops_per_sample: float | None = None
    reason: str | None = None


# Why ranks and workers stop whose starter has gone.
DESERTED = "the command line exited"


class Stopped(Line, frozen=True, kw_only=True, tag="stopped"):
    """The run ended in good order before its end: someone asked it to."""

    reason: str


class Failed(Line, frozen=True, kw_only=True, tag="failed"):
    """The run could not continue."""

    finding: Finding


class Finished(Line, frozen=True, kw_only=True, tag="finished"):
    """The run reached its end.

    split_s: where the time of all its workers went; train_s: their sum.
    peak_memory_bytes: that the training has held; on a GPU what its allocator has reserved, of
    which tensors have taken peak_allocated_bytes at most (None on a CPU).
    checkpoint_share: of the last worker's time, what checkpoints cost it (stall and slowdown).
    reason: why it ended before its last epoch (early stopping), None if it did not.
    is_schedule_over: longer, it would be trained at a learning rate of 0, or not at all.
    """

    train_s: float
    split_s: dict[str, float]
    num_samples_seen: int
    peak_memory_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    checkpoint_share: float | None = None
    reason: str | None = None
    is_schedule_over: bool = False


Event = (
    Profiled
    | Trying
    | Tried
    | Tuned
    | Outlined
    | Started
    | RecipeSet
    | Extended
    | SharesChecked
    | FileChanged
    | DryRan
    | Fetched
    | Warned
    | Checkpointed
    | FlopsCounted
    | Stopped
    | Failed
    | Finished
)


class Progress(Line, frozen=True, kw_only=True, tag="progress"):
    """Training since the last such line: loss is the mean over its samples.

    losses: the same for each loss that the experiment's own step names; `loss` is then their sum.
    learning_rate: of the first optimizer's first group; learning_rates: of each, if several.
    split_s: seconds since the run's beginning in data, copy, forward, backward, optimizer,
    checkpoint, validation and other; with several ranks also exchange.
    memory_bytes: that the training holds; on a GPU what its allocator has reserved, and tensors'
    share of it in allocated_bytes (None on a CPU).
    power_w: what the GPU has drawn since the worker took up the run, on the average; None if
    unknown.
    """

    epoch: int
    loss: float | None
    samples_per_s: float | None
    learning_rate: float
    memory_bytes: int | None
    split_s: dict[str, float]
    allocated_bytes: int | None = None
    power_w: float | None = None
    losses: dict[str, float] = {}
    learning_rates: dict[str, float] = {}


class EpochEnded(Line, frozen=True, kw_only=True, tag="epochended"):
    """An epoch's mean training loss over its samples; None if it is not a finite number.

    losses: the same for each loss that the experiment's own step names. learning_rate: of the
    epoch's last update, as Progress has it; lines of progress come by time, this one always.
    """

    epoch: int
    loss: float | None
    losses: dict[str, float] = {}
    learning_rate: float | None = None


class Validated(Line, frozen=True, kw_only=True, tag="validated"):
    """Metrics over the whole validation data; is_best by the experiment's own criterion.

    A metric that is not a finite number is None: JSON knows neither NaN nor infinity.
    """

    epoch: int
    metrics: dict[str, float | None]
    is_best: bool


class Classified(Line, frozen=True, kw_only=True, tag="classified"):
    """The classes of a validation and the model's answers; follows its Validated.

    name: that of the metric. counts: (true class, predicted class, samples), the pairs that occur:
    of a thousand classes, most never do.
    """

    epoch: int
    name: str
    labels: tuple[str, ...]
    counts: tuple[tuple[int, int, int], ...]


class Generated(Line, frozen=True, kw_only=True, tag="generated"):
    """Text that the model wrote; follows a Validated. Long texts are cut."""

    epoch: int
    texts: tuple[str, ...]


class Logged(Line, frozen=True, kw_only=True, tag="logged"):
    """What a hook has logged: a number, a text (cut if long), or a picture.

    epoch: whole epochs trained by then. value: None also where the number is not finite.
    picture: path of a PNG file, from the run's folder.
    """

    epoch: int
    name: str
    value: float | None = None
    text: str | None = None
    picture: str | None = None


Metric = Progress | EpochEnded | Validated | Classified | Generated | Logged
