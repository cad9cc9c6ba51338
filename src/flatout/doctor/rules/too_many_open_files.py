"""The process has reached its limit on open files.

**Checks.** Error 24, and data loader errors when file descriptors run out. On the machine: a limit
of fewer than 1024 open files.

**Why it matters.** Each tensor that a loader worker passes on holds a file descriptor; the default
limit is 1,024.

**Example.** `OSError: [Errno 24] Too many open files`

**Fix.** Raise the limit in this shell; safe. Or let torch share tensors through files.

**Source.** docs.pytorch.org/docs/stable/multiprocessing.html, sharing strategies;
pytorch/pytorch#973.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("files-limit",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="too-many-open-files",
        severity="error",
        problem="The process has reached its limit on open files.",
        because="tensors from loader workers hold file descriptors",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="raise the limit on open files",
                safety="safe",
                commands=("ulimit -n 65535",),
                where="linux",
                changes="only this shell",
                undo="close the shell",
            ),
        ),
        confirm=("ulimit -n",),
    )


def _in_facts(machine: Machine) -> Facts:
    """A soft limit low enough for loader workers to reach."""
    limit = machine.limits.open_files if machine.limits else None
    return (
        fact(f"{limit} open files at most", "/proc/self/limits") if limit and limit < 1024 else ()
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="files-limit", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "files-limit",
            "Too many open files",
            "received 0 items of ancdata",
            "EMFILE",
            "set_sharing_strategy",
            pattern=r"Too many open files|received 0 items of ancdata|EMFILE|"
            r"Please increase the limit using .?ulimit -n",
        ),
    ),
    explains=(
        "shm-too-small",
        "host-memory-exhausted",
    ),
)
