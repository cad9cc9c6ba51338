"""A cgroup limits memory to a small part of the machine's.

**Checks.** On the machine: the limits of this process's cgroup and its parents.

**Why it matters.** `free` and psutil show the machine's memory. A training that relies on it is
killed when it reaches the cgroup's limit.

**Example.** `this cgroup may use 4.0 GiB, the machine has 256 GiB`

**Fix.** Raise the limit of the container, service or job; by hand.

**Source.** docs.kernel.org/admin-guide/cgroup-v2.html (memory.max).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text


def check(case: Case) -> Finding | None:
    """The limit is low."""
    if not case.sees("group-limit-low"):
        return None
    return Finding(
        rule="memory-limited-by-group",
        severity="note",
        problem="This process may use only part of the machine's memory.",
        because="its cgroup has a limit; processes that exceed it are killed",
        evidence=case.evidence("group-limit-low"),
        fixes=(
            Fix(
                text="start the container, service or job with more memory",
                commands=("docker run --memory=32g ...", "systemctl show -p MemoryMax <unit>"),
                where="host",
                changes="the container or service is restarted",
            ),
        ),
        confirm=("cat /sys/fs/cgroup/memory.max",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Less than a quarter of the machine, and less than 16 GiB."""
    limit, total = machine.memory.limit_bytes, machine.memory.total_bytes
    if limit is None or total is None or limit >= min(total / 4, 16 * 2**30):
        return ()
    text = f"this cgroup may use {bytes_text(limit)}, the machine has {bytes_text(total)}"
    return fact(text, "memory.max")


RULE = Rule(
    check=check,
    prior=20,
    fact_checks=(FactCheck(sign="group-limit-low", read=_in_facts, severity="note"),),
)
