"""What the doctor is asked to do."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.errors import UsageError
from flatout.nouns.finding import Finding


class DoctorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the options of `flatout doctor` that decide what is read.

    replayed: the file of a recording, read in place of this machine. record: file to write one to.
    env: name of an environment of `flatout setup`, in place of `python`.
    """

    python: str | None = None
    env: str | None = None
    is_deep: bool = False
    replayed: str | None = None
    record: str | None = None


class DoctorManner(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are the options that decide what is done with what was read.

    fail_on: from which severity on the exit code is 1.
    is_sure: what is safe is mended unasked. is_dry: nothing is changed.
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
        return any(one.severity in failing for one in findings)


def check_fixing(request: DoctorRequest, manner: DoctorManner) -> None:
    """Makes sure that there is a machine to mend, and a person to tell.

    Raises:
        UsageError: fix-needs-this-machine.
    """
    others = {"--from": request.replayed, "--record": request.record, "--sarif": manner.is_sarif}
    named = [option for option, value in others.items() if value]
    if named:
        raise UsageError(
            "fix-needs-this-machine",
            f"`--fix` cannot be combined with `{named[0]}`.",
            because="it repairs the machine that it runs on, and reports what it did",
            fix="leave one of them out",
        )
