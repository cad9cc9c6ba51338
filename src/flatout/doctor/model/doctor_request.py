"""The options of `flatout doctor`."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.errors import UsageError
from flatout.schema.finding import Finding


class DoctorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the options of `flatout doctor` that decide what is read.

    replayed: a recording to examine instead of this machine. record: file to write one to.
    env: name of an environment of `flatout setup`, instead of `python`.
    """

    python: str | None = None
    env: str | None = None
    is_deep: bool = False
    replayed: str | None = None
    record: str | None = None


class DoctorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the options that decide what happens with the findings.

    fail_on: exit code 1 at or above this severity.
    is_sure: apply safe fixes without asking. is_dry: change nothing.
    """

    fail_on: Literal["error", "warning"] = "error"
    is_fixing: bool = False
    is_sure: bool = False
    is_dry: bool = False
    is_verbose: bool = False
    is_json: bool = False
    is_sarif: bool = False

    def fails(self, findings: tuple[Finding, ...]) -> bool:
        """Whether one of them is severe enough for an exit code of 1."""
        failing = ("error",) if self.fail_on == "error" else ("error", "warning")
        return any(finding.severity in failing for finding in findings)


def check_fixing(request: DoctorRequest, options: DoctorOptions) -> None:
    """Checks that `--fix` is not combined with options that exclude it.

    Raises:
        UsageError: fix-needs-this-machine.
    """
    others = {"--from": request.replayed, "--record": request.record, "--sarif": options.is_sarif}
    named = [option for option, value in others.items() if value]
    if named:
        raise UsageError(
            "fix-needs-this-machine",
            f"`--fix` cannot be combined with `{named[0]}`.",
            because="it repairs this machine and reports the result",
            fix="leave one of them out",
        )
