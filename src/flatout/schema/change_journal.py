"""The changes made by flatout, as recorded in its journal: one file of lines for each plan applied.

A line is written, and on the disk, before what it announces is done. So after a power cut nothing
was changed that no line reports about.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.schema.finding import Finding
from flatout.schema.plan import Plan

How = Literal["done", "skipped", "failed", "not started"]
Status = Literal["done", "failed", "interrupted", "running", "undone"]


class PlanBegun(msgspec.Struct, frozen=True, kw_only=True, tag="plan-begun"):
    """A plan is about to be applied. at: seconds since the epoch, UTC."""

    at: float
    plan: Plan


class FileKept(msgspec.Struct, frozen=True, kw_only=True, tag="file-kept"):
    """A file as it was. copy: its name in the entry's folder; None where there was no such file.

    digest: SHA-256 of the copy; None in entries written before it was recorded.
    path: without links, so that what is put back is what was changed.
    folders: that were missing above it, from the outermost on.
    """

    path: str
    copy: str | None
    digest: str | None = None
    needs_root: bool = False
    folders: tuple[str, ...] = ()


class TreeKept(msgspec.Struct, frozen=True, kw_only=True, tag="tree-kept"):
    """A folder with all below it, as hard links in another. copy: that folder's path."""

    step: int
    path: str
    copy: str


class StepBegun(msgspec.Struct, frozen=True, kw_only=True, tag="step-begun"):
    """A step is about to be done. digests: path -> SHA-256 of what is written there."""

    step: int
    digests: dict[str, str] = {}


class StepEnded(msgspec.Struct, frozen=True, kw_only=True, tag="step-ended"):
    """A step is over. digests: path -> of the files that a program wrote, and of folders."""

    step: int
    how: How
    reason: str | None = None
    digests: dict[str, str] = {}


class PlanEnded(msgspec.Struct, frozen=True, kw_only=True, tag="plan-ended"):
    """Nothing more comes. digests: folder -> of the folders that the plan has made."""

    at: float
    digests: dict[str, str] = {}


class UndoBegun(msgspec.Struct, frozen=True, kw_only=True, tag="undo-begun"):
    """Everything is about to be put back."""

    at: float


class Undone(msgspec.Struct, frozen=True, kw_only=True, tag="undone"):
    """Everything is as it was. left: what could not be put back, in words."""

    at: float
    left: tuple[str, ...] = ()


JournalLine = (
    PlanBegun | FileKept | TreeKept | StepBegun | StepEnded | PlanEnded | UndoBegun | Undone
)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was applied, or started: all that its lines tell."""

    id: str
    folder: str
    begun: PlanBegun
    lines: tuple[JournalLine, ...]
    is_under_way: bool = False

    @property
    def status(self) -> Status:
        """The present status."""
        if any(isinstance(line, Undone) for line in self.lines):
            return "undone"
        if self.is_under_way:
            return "running"
        if not any(isinstance(line, PlanEnded) for line in self.lines):
            return "interrupted"
        hows = [line.how for line in self.lines if isinstance(line, StepEnded)]
        return "failed" if "failed" in hows else "done"

    @property
    def begun_steps(self) -> tuple[int, ...]:
        """The steps that have changed something, or may have, the last first."""
        return tuple(
            sorted({line.step for line in self.lines if isinstance(line, StepBegun)}, reverse=True)
        )


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a plan's step. id: of the journal's entry; None if nothing was changed yet."""

    step: int
    text: str
    how: How
    problem: Finding | None = None
    id: str | None = None
