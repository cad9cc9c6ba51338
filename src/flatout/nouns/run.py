"""One training of one experiment, with everything that is known about it."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.finding import Finding
from flatout.nouns.lines import Finished, Started, Validated
from flatout.nouns.machine import Machine
from flatout.nouns.recipe import Recipe

Status = Literal["new", "running", "finished", "stopped", "failed", "interrupted"]


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What is fixed when a run is made (`run.json`). python: the interpreter that trains it."""

    id: str
    created_at: float
    flatout_version: str
    python: str
    spec: ExperimentSpec
    machine: Machine | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its folder tells. `interrupted`: nobody works on it and it did not end itself."""

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

    @property
    def id(self) -> str:
        """Name of the run, unique among the runs of its folder."""
        return self.header.id

    @property
    def best_validation(self) -> Validated | None:
        """The validation whose weights are kept, or None where there was none."""
        return next((one for one in reversed(self.validations) if one.is_best), None)
