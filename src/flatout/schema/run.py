"""One training of one experiment, with everything that is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Literal

import msgspec

from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec, SweepRun, UsedConfig
from flatout.schema.finding import Finding
from flatout.schema.machine import Machine
from flatout.schema.machine_use import MachineUse
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.recipe import Recipe
from flatout.schema.run_lines import (
    Checkpointed,
    Extended,
    FileChanged,
    Finished,
    FlopsCounted,
    Started,
    Stopped,
    Validated,
)
from flatout.schema.tracking import TrackerPosition

Status = Literal["new", "running", "finished", "stopped", "failed", "interrupted"]


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The facts fixed when a run is made (`run.json`).

    python: the interpreter that trains it. on: who starts its ranks, as it was typed; None for a
    single process. config: what was taken from a configuration file. sweep: of which it is a
    trial, if of any.
    """

    id: str
    # What a calendar knows, in every time zone.
    created_at: Annotated[float, msgspec.Meta(ge=0, le=253_402_214_400)]
    flatout_version: str
    python: str
    on: str | None = None
    config: UsedConfig | None = None
    spec: ExperimentSpec
    machine: Machine | None = None
    sweep: SweepRun | None = None


class Checkpointing(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a run's checkpoints: how long each stopped training, slowed it down, and was
    written next to it (means), and the share of the time they took from training.

    size_bytes: of the last one. share: None if the training time is unknown.
    """

    num_written: int
    stall_s: float
    slowdown_s: float
    write_s: float
    size_bytes: int
    share: float | None


def checkpointing(
    lines: Sequence[Checkpointed], *, share: float | None, train_s: float | None
) -> Checkpointing | None:
    """Sums up what a run reports about its checkpoints; None where it has written none.

    share: as recorded at the run's end; where it is None, it is computed from train_s.
    """
    if not lines:
        return None
    stall_s = sum(line.stall_s for line in lines)
    slowdown_s = sum(line.slowdown_s for line in lines)
    if share is None and train_s:
        share = (stall_s + slowdown_s) / train_s
    return Checkpointing(
        num_written=len(lines),
        stall_s=stall_s / len(lines),
        slowdown_s=slowdown_s / len(lines),
        write_s=sum(line.write_s for line in lines) / len(lines),
        size_bytes=lines[-1].size_bytes,
        share=share,
    )


class Utilization(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what a machine can do a training does.

    samples_per_s: of all ranks. share: of the limit of matrix products in this precision (MFU);
    None if it is not stored for this machine, device and torch.
    are_limits_missing: measuring them would give the share.
    is_limit_doubtful: it was measured while other programs ran, and may be higher.
    """

    samples_per_s: float
    flops_per_s: float
    precision: str
    share: float | None = None
    are_limits_missing: bool = False
    is_limit_doubtful: bool = False


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as read from its folder. `interrupted`: no process works on it, and it did not end.

    finished, stopped: the last such line, though the run may have continued since.
    adaptations: what it has changed because memory ran out, in the order of the events.
    extended: to how long it was made longer last. file_changes: other texts of its experiment.
    failure: what ended it, where that is how it stands. flops: None where the run was too short.
    utilization, machine_use: None where it was not asked for, or not recorded.
    is_elsewhere: it is not among flatout's runs, so that a command takes its folder.
    trackers: how far each has come to which the run is sent.
    """

    folder: str
    header: RunHeader
    status: Status
    step: int
    recipe: Recipe | None
    started: Started | None
    finished: Finished | None
    validations: tuple[Validated, ...]
    findings: tuple[Finding, ...]
    checkpoint_step: int | None
    stopped: Stopped | None = None
    checkpointing: Checkpointing | None = None
    adaptations: tuple[OomAdaptation, ...] = ()
    extended: Extended | None = None
    file_changes: tuple[FileChanged, ...] = ()
    failure: Finding | None = None
    flops: FlopsCounted | None = None
    utilization: Utilization | None = None
    machine_use: MachineUse | None = None
    is_elsewhere: bool = False
    trackers: tuple[TrackerPosition, ...] = ()

    @property
    def ending_reason(self) -> str | None:
        """The reason for an end before the last epoch, without a failure."""
        ending = {"finished": self.finished, "stopped": self.stopped}.get(self.status)
        return ending.reason if ending else None

    @property
    def last_change(self) -> Change:
        """The last change that a resume does not take from the run's folder."""
        last = self.started
        if last is None:
            return Change(on=self.header.on)
        python = None if last.python == self.header.python else last.python
        return Change(on=last.on, python=python, leave_free_bytes=last.leave_free_bytes)

    def change_for_another(self, own_python: str) -> Change:
        """The change for another run like it, which has no header of this one's to go by.

        own_python: flatout's interpreter, which needs no naming.
        """
        python = self.last_change.python or self.header.python
        return msgspec.structs.replace(
            self.last_change, python=None if python == own_python else python
        )

    @property
    def id(self) -> str:
        """Name of the run, unique in its folder; its header has another where it was copied."""
        return PurePath(self.folder).name

    @property
    def typed(self) -> str:
        """The name of the run in a command."""
        return self.folder if self.is_elsewhere else self.id

    @property
    def best_validation(self) -> Validated | None:
        """The validation whose weights are kept, or None where there was none."""
        return next(
            (validation for validation in reversed(self.validations) if validation.is_best), None
        )


class DamagedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with an unreadable file.

    id: its folder's name; because: what is wrong; fix: what to do about it.
    """

    id: str
    folder: str
    because: str
    fix: str = ""
    status: Literal["unreadable"] = "unreadable"
