"""A sweep: many trainings of one experiment with different parameters.

Its folder has `sweep.json` (SweepHeader) and `trials.jsonl`, with a line (SweepTrial) when the
parameters of a trial were chosen, and one when it has ended. The trials themselves are runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from flatout.errors import UsageError
from flatout.schema.experiment_spec import Value
from flatout.schema.finding import Finding
from flatout.schema.tracking import parse_trackers
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuning import Mode
from flatout.schema.units import is_smaller_better

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["none", "median", "halving", "hyperband"]
Direction = Literal["minimize", "maximize"]
EndStatus = Literal["finished", "pruned", "stopped", "failed"]
TrialStatus = Literal["running", "interrupted", EndStatus]
# Of the files in a sweep's folder.
FORMAT = 1
DEFAULT_TRIALS = 20
# A mistyped number must not train for years.
_MOST_TRIALS = 100_000


class Range(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="range"):
    """Numbers from low to high, both included. step: the distance between them, if any."""

    low: int | float
    high: int | float
    step: int | float | None = None
    is_log: bool = False
    is_int: bool = False


class Choices(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="choices"):
    """Values, none of which is between two others."""

    values: tuple[Value, ...]


Space = dict[str, Range | Choices]


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout sweep` as data.

    training: of every trial, with the parameters as they were typed, ranges among them.
    num_trials: None takes the whole grid, else DEFAULT_TRIALS. sampler: None takes `grid` where the
    trials are enough for every combination, else `tpe`. metric, direction: None takes the
    experiment's `best`, and the direction that its name has. parallel: trials at a time; None takes
    one, and on a resume as many as before. name: of the sweep; None finds a free one. resume: the
    sweep to continue.
    """

    training: TrainRequest = TrainRequest()
    num_trials: int | None = None
    sampler: Sampler | None = None
    pruner: Pruner = "none"
    metric: str | None = None
    direction: Direction | None = None
    parallel: int | None = None
    name: str | None = None
    resume: str | None = None

    def check(self) -> None:
        """Refuses invalid values, and what cannot be combined.

        Raises:
            UsageError: bad-sweep, bad-tracker, cannot-change-on-resume, and what TrainRequest.check
                says.
        """
        for option, number in (("--trials", self.num_trials), ("--parallel", self.parallel)):
            if number is not None and not 1 <= number <= _MOST_TRIALS:
                raise UsageError(
                    "bad-sweep", f"`{option} {number}` is out of range.",
                    because=f"it must be from 1 to {_MOST_TRIALS:,}", fix=f"{option} 20",
                )  # fmt: skip
        try:
            # From Python, a sampler may have any name.
            msgspec.convert(msgspec.to_builtins(self), SweepRequest)
        except msgspec.ValidationError as error:
            raise UsageError(
                "bad-sweep", "an option of the sweep has an invalid value.", because=str(error),
                fix="see the valid values: flatout sweep --help",
            ) from error  # fmt: skip
        if self.resume is None:
            self.training.check()
            _refuse_passwords(self.training.track)
            return
        kept = SweepRequest(resume=self.resume, num_trials=self.num_trials, parallel=self.parallel)
        if self != kept:
            raise UsageError(
                "cannot-change-on-resume",
                f"sweep {self.resume} keeps its experiment, parameters and options.",
                because="its trials are compared with each other",
                fix="with --resume, give only --trials and --parallel; or start a new sweep",
            )


def _refuse_passwords(trackers: Sequence[str]) -> None:
    for target in parse_trackers(trackers):
        if target != target.kept:
            raise UsageError(
                "bad-tracker",
                f"`--track {target}` has a user, a password or parameters in its address.",
                because="a sweep's options are kept, for its later trials, and a password must "
                "not be",
                fix="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or WANDB_API_KEY",
            )


def default_tuning(parallel: int | None) -> Mode:
    """Whether trials search for a recipe; next to another trial a search measures nothing."""
    return "auto" if parallel in (None, 1) else "off"


class SweepHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a sweep (`sweep.json`).

    training: of every trial, without what the space varies. sha256: of the experiment's file.
    parallel: trials at a time.
    metric, direction: None until the first trial has reported the experiment's `best`.
    """

    id: str
    created_at: float
    flatout_version: str
    training: TrainRequest
    sha256: str | None
    space: Space
    num_trials: int
    sampler: Sampler
    pruner: Pruner
    parallel: int = 1
    metric: str | None = None
    direction: Direction | None = None
    format: int = FORMAT

    def run_id(self, trial: int) -> str:
        """The id of the run that is that trial."""
        return f"{self.id}-{trial:03d}"

    def cost(self, value: float) -> float:
        """A value of the metric as a number of which the smaller is the better."""
        return -value if self.direction == "maximize" else value


def direction_of(metric: str, given: Direction | None) -> Direction:
    """The direction that was requested, else that of the metric's name."""
    return given or ("minimize" if is_smaller_better(metric) else "maximize")


class SweepTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial: as a line of `trials.jsonl`, or as it stands.

    at: when its parameters were chosen, or when it ended. run: its id. value: of the metric, the
    best of its validations so far. reports: the metric of each validation, once it has ended.
    state: what the pruner has noted. duration_s: how long it has trained. share: of its training
    that is done, if it is running and that is known.
    """

    at: float
    trial: int
    run: str
    parameters: dict[str, Value]
    status: TrialStatus = "interrupted"
    value: float | None = None
    reports: tuple[float | None, ...] = ()
    state: dict[str, Any] = {}
    duration_s: float | None = None
    share: float | None = None
    finding: Finding | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is not continued."""
        return self.status not in ("running", "interrupted")


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep as it stands.

    trials: by their numbers. best: the number of the best that has finished. command: trains that
    again. importances: of the parameters for the metric; they add up to 1.
    """

    id: str
    folder: str
    header: SweepHeader
    trials: tuple[SweepTrial, ...] = ()
    best: int | None = None
    command: str | None = None
    importances: dict[str, float] = {}

    @property
    def ranking(self) -> list[SweepTrial]:
        """The trials, the best first; those that have not finished at the end."""
        order = ("finished", "pruned", "stopped", "running", "interrupted", "failed")
        return sorted(
            self.trials,
            key=lambda one: (
                order.index(one.status),
                one.value is None,
                self.header.cost(one.value or 0.0),
                one.trial,
            ),
        )

    @property
    def num_left(self) -> int:
        """How many trials have not ended."""
        return max(0, self.header.num_trials - sum(one.has_ended for one in self.trials))
