"""A process was killed because the machine's memory ran out.

**Checks.** The kernel's OOM killer, cgroups, Slurm, LSF, Kubernetes, systemd-oomd, Ray and Dask,
and processes that ended by SIGKILL. On the machine: how often the kernel has killed a process of
this group (cgroup) for memory.

**Why it matters.** Nothing is raised in Python: the process is gone in the middle of a line.
Loader workers each hold a part of the data set, and weights are read into memory first.

**Example.** `Out of memory: Killed process 4711 (python) total-vm:18109076kB`

**Fix.** Fewer loader workers, data read as it is needed, a higher limit; by hand.

**Source.** docs.kernel.org/admin-guide/cgroup-v2.html; slurm.schedmd.com/cgroups.html;
kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.units import counted_text

_TELLING = (
    "oom-scheduler",
    "oom-worker",
    "kernel-killed-process",
)
_USUAL = ("killed-by-signal",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_TELLING, *_USUAL):
        return None
    return Finding(
        rule="host-oom-killer",
        severity="error",
        certainty=case.certainty(*_TELLING),
        problem="A process was killed because the machine's memory ran out.",
        evidence=case.evidence(*_TELLING, *_USUAL),
        fixes=(
            Fix(
                text=(
                    "use less of the machine's memory: fewer loader workers, no data "
                    "set in lists, weights loaded in parts; or raise the limit"
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
    """The group's own count."""
    count = machine.memory.num_killed
    if not count:
        return ()
    return fact(
        f"{counted_text(count, 'process', 'processes')} of this group killed for memory",
        "memory.events",
    )


RULE = Rule(
    check=check,
    prior=60,
    readings=(Reading(sign="oom-worker", read=_in_facts, severity="warning"),),
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
