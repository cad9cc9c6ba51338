"""No more threads or processes may be started.

**Checks.** What OpenBLAS, OpenMP, Python and bash say when a thread or a process is refused. On the
machine: a limit of fewer than 1024 processes.

**Why it matters.** Loader workers times the threads of each add up. A container's `pids` limit
and `ulimit -u` count threads.

**Example.** `OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource
temporarily unavailable`

**Fix.** Fewer threads in each process, in this shell; safe. Or a higher limit.

**Source.** docs.kernel.org/admin-guide/cgroup-v1/pids.html; github.com/OpenMathLib/OpenBLAS, FAQ.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.units import counted_text

_SIGNS = ("thread-refused",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="thread-limit-reached",
        severity="error",
        problem="No more threads or processes may be started.",
        because="threads count against the limit of processes",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="start fewer threads in each process",
                safety="safe",
                commands=("export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1",),
                where="linux",
                changes="this shell alone",
                undo="close the shell",
            ),
        ),
        confirm=(
            "ulimit -u",
            "cat /sys/fs/cgroup/pids.max",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """A soft limit that a training's threads reach."""
    limit = machine.limits.processes if machine.limits else None
    return (
        fact(f"{counted_text(limit, 'process', 'processes')} at most", "/proc/self/limits")
        if limit and limit < 1024
        else ()
    )


RULE = Rule(
    check=check,
    prior=50,
    readings=(Reading(sign="thread-refused", read=_in_facts, severity="warning"),),
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
