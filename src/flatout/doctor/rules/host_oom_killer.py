"""A process was killed because host memory ran out.

**Checks.** The kernel's OOM killer, cgroups, Slurm, LSF, Kubernetes, systemd-oomd, Ray and Dask,
and processes that died from SIGKILL. On the machine: how often the kernel has killed a process of
this cgroup for memory.

**Why it matters.** Python raises no exception: the process simply disappears. Each loader worker
holds a part of the data set, and weights are read into host memory first.

**Example.** `Out of memory: Killed process 4711 (python) total-vm:18109076kB`

**Fix.** Use fewer loader workers, load data lazily, or raise the limit; by hand.

**Source.** docs.kernel.org/admin-guide/cgroup-v2.html; slurm.schedmd.com/cgroups.html;
kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import counted_text

_DECISIVE = (
    "oom-scheduler",
    "oom-worker",
    "kernel-killed-process",
)
_AMBIGUOUS = ("killed-by-signal",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_DECISIVE, *_AMBIGUOUS):
        return None
    return Finding(
        rule="host-oom-killer",
        severity="error",
        certainty=case.certainty(*_DECISIVE),
        problem="A process was killed because host memory ran out.",
        evidence=case.evidence(*_DECISIVE, *_AMBIGUOUS),
        fixes=(
            Fix(
                text=(
                    "use less host memory: fewer loader workers, no data set in Python "
                    "lists, weights loaded in parts; or raise the limit"
                ),
                commands=(
                    "free -h",
                    "sudo dmesg -T | grep -i 'killed process'",
                ),
                where="linux",
            ),
        ),
        confirm=(
            "sudo dmesg -T | grep -i 'killed process'",
            "cat /sys/fs/cgroup/memory.max",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """The cgroup's own count."""
    count = machine.memory.num_killed
    if not count:
        return ()
    return fact(
        f"{counted_text(count, 'process', 'processes')} of this cgroup killed for memory",
        "memory.events",
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="oom-worker", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "oom-scheduler",
            "oom-kill event",
            "oom_kill event",
            "out-of-memory handler",
            "OUT_OF_MEMORY",
            "OOMKilled",
            "TERM_MEMLIMIT",
            "memory limit",
            "systemd-oomd",
            "earlyoom",
            "running low on memory",
            "oom-killer",
            "oom-kill",
            pattern=r"oom.kill event|out-of-memory handler|\bOUT_OF_ME(?:MORY|\+)|"
            r"OOMKilled\W{1,6}(?!\W{0,4}false)(?:true|\d|$|\s)|OOMKilled\s*$|"
            r"Reason:\s+OOMKilled|TERM_MEMLIMIT|(?:Exceeded|exceeded) (?:job |"
            r"step )?memory limit|systemd-oomd.{0,60}Killed|"
            r"earlyoom.{0,40}sending SIG|node running low on memory|"
            r"invoked oom-killer|Killed process \d+.{0,60}memory limit",
        ),
        signature(
            "oom-worker",
            "95% memory budget",
            "exceeded 95",
            "memory budget. Restarting",
            "after using all available RAM",
            "OutOfMemoryKiller",
            "OOM-killed",
            "ray.exceptions.OutOfMemoryError",
            "Workers (tasks / actors) killed due to memory pressure",
        ),
        signature(
            "killed-by-signal",
            "Killed",
            "SIGKILL",
            "exit code 137",
            "exitcode 137",
            "code 137",
            "exit status 137",
            "exitcode: -9",
            "returned non-zero exit status 137",
            "signal 9",
            pattern=r"(?:^|[\s:])Killed\s*(?:python|bash|sh|\./|torchrun|accelerate|$)|"
            r"killed by signal: Killed|\bkilled\s+(?:python|accelerate|torchrun)|"
            r"<Signals\.SIGKILL|SIGKILL\)?:? ?9?\)?|"
            r"exit(?:ed)?(?: with)?[ -]?(?:code|status)?:?\s?(?:\(?137\b|: -9\b)|"
            r"exit ?code\s*[:=]? ?\(?(?:137|-9)\b|terminated by signal (?:SIGKILL|"
            r"9)|signal 9\b",
        ),
    ),
)
