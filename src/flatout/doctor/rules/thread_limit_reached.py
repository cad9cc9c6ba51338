"""The limit on threads or processes has been reached.

**Checks.** Errors of OpenBLAS, OpenMP, Python and bash when a thread or process cannot be created.
On the machine: a limit of fewer than 1024 processes.

**Why it matters.** Each loader worker starts several threads, which add up. A container's `pids`
limit and `ulimit -u` count threads.

**Example.** `OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource
temporarily unavailable`

**Fix.** Start fewer threads per process, in this shell; safe. Or raise the limit.

**Source.** docs.kernel.org/admin-guide/cgroup-v1/pids.html; github.com/OpenMathLib/OpenBLAS, FAQ.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import counted_text

_SIGNS = ("thread-refused",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="thread-limit-reached",
        severity="error",
        problem="The limit on threads or processes has been reached.",
        because="threads count toward the process limit",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="start fewer threads per process",
                safety="safe",
                commands=("export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",),
                where="linux",
                changes="only this shell",
                undo="close the shell",
            ),
        ),
        confirm=(
            "ulimit -u",
            "cat /sys/fs/cgroup/pids.max",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """A soft limit low enough for a training's threads to reach."""
    limit = machine.limits.processes if machine.limits else None
    return (
        fact(f"{counted_text(limit, 'process', 'processes')} at most", "/proc/self/limits")
        if limit and limit < 1024
        else ()
    )


RULE = Rule(
    check=check,
    prior=50,
    fact_checks=(FactCheck(sign="thread-refused", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "thread-refused",
            "pthread_create failed",
            "Thread creation failed",
            "start new thread",
            "Resource temporarily unavailable",
            "OMP: Error #34",
            "unable to create native thread",
            pattern=r"pthread_create failed|Thread creation failed|can't start new thread|"
            r"(?:fork|retry|Errno 11|BlockingIOError|"
            r"thread).{0,60}Resource temporarily unavailable|OMP: Error #34|"
            r"unable to create native thread",
        ),
    ),
    explains=("host-memory-exhausted",),
)
