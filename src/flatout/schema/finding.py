"""Something that is wrong or worth knowing, with its evidence and what to do about it."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.addresses import masked
from flatout.schema.plan import Block, Edit, Place, Plan, Safety

Severity = Literal["error", "warning", "note"]
# How sure: decided by evidence of this cause alone; likely; one cause of several that fit.
Certainty = Literal["decided", "likely", "possible"]
# A name for the .wslconfig of the logged-in Windows user, until a plan names the file itself.
WSLCONFIG = "%UserProfile%\\.wslconfig"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A line or fact that was seen. where: "line 212", "here", or the program that reported it."""

    text: str
    where: str | None = None

    def __str__(self) -> str:
        """As a line."""
        return f"{self.where}  {self.text}" if self.where else self.text


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A way out, in words, with the commands that do it, if any.

    commands: what to type, one at a time, exactly. where: in which shell.
    edits: of files of settings or of a shell, to be made before the commands.
    changes: what they change. undo: how to take that back; None if it cannot be.
    plan: the same as steps that flatout can carry out on this machine; None for what is only shown.
    """

    text: str
    safety: Safety = "manual"
    commands: tuple[str, ...] = ()
    edits: tuple[Edit | Block, ...] = ()
    where: Place = "here"
    changes: str | None = None
    undo: str | None = None
    plan: Plan | None = None


def page_command(rule: str) -> str:
    """The command that shows the page of a rule or an error."""
    return f"flatout explain {rule}"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Bad news: what is wrong, from what evidence, why, and what to do; `rule` names its page.

    evidence: lines; an Evidence where it matters in what text or place a line was seen.
    confirm: commands whose answer would decide, where the evidence does not.
    see: the command that shows more; the rule's page, if nothing else.
    """

    rule: str
    severity: Severity
    problem: str
    because: str | None = None
    evidence: tuple[Evidence | str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    certainty: Certainty = "decided"
    confirm: tuple[str, ...] = ()
    see: str = ""

    def __post_init__(self) -> None:
        if not self.see:
            msgspec.structs.force_setattr(self, "see", page_command(self.rule))


def finding_from(error: FlatoutError, severity: Severity = "error") -> Finding:
    """The same bad news as a value: to be stored in a run, sent as JSON, shown later."""
    return Finding(
        rule=error.rule,
        severity=severity,
        problem=masked(error.problem),
        because=error.because and masked(error.because),
        fixes=(Fix(text=masked(error.fix)),),
    )


def internal_error(error: BaseException, because: str | None = None) -> Finding:
    """A fault of flatout's own; its traceback is in a log."""
    return Finding(
        rule="internal-error",
        severity="error",
        problem=f"flatout itself failed: {type(error).__name__}: {error}",
        because=because,
    )


def option_without_effect(option: str, because: str, fix: str) -> Finding:
    """The warning about an option of the command line that changes nothing."""
    return Finding(
        rule="option-without-effect",
        severity="warning",
        problem=f"`{option}` has no effect.",
        because=because,
        fixes=(Fix(text=fix),),
    )


def unchanged_file() -> Finding:
    """The warning about a changed file that was requested for a run, and is the same as before."""
    return option_without_effect(
        "--changed", "the experiment's file has not changed since the run started", "leave it out"
    )
