"""The locked-memory limit is too low for RDMA or pinned memory.

**Checks.** Errors of InfiniBand libraries, NCCL and UCX about RLIMIT_MEMLOCK. On the machine: an
InfiniBand or RoCE device, and a limit of 64 MiB or less.

**Why it matters.** InfiniBand registers memory that must stay locked. With a limit of 64 KiB, NCCL
fails or falls back to sockets.

**Example.** `libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.`

**Fix.** Raise the limit: `--ulimit memlock=-1` for a container; otherwise limits.conf or the
scheduler; by hand.

**Source.** docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html;
github.com/openucx/ucx, FAQ.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text

_SIGNS = ("memlock-refused",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="memlock-limit-too-low",
        severity="warning",
        problem="The locked-memory limit is too low for RDMA or pinned memory.",
        because="memory for RDMA must be locked",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="allow unlimited locked memory",
                commands=("docker run --ulimit memlock=-1 --ulimit stack=67108864 ...",),
                where="host",
                changes="the container or the session is restarted",
            ),
        ),
        confirm=("ulimit -l",),
    )


def _in_facts(machine: Machine) -> Facts:
    """There is an RDMA device, but the locked-memory limit is low."""
    limit = machine.limits.locked_bytes if machine.limits else None
    if limit is None or limit > 64 * 2**20:
        return ()
    if machine.network is None or not machine.network.has_infiniband:
        return ()
    return (
        *fact(f"{bytes_text(limit)} of memory may be locked", "/proc/self/limits"),
        *fact("an RDMA device", "/sys/class/infiniband"),
    )


RULE = Rule(
    check=check,
    prior=50,
    fact_checks=(FactCheck(sign="memlock-refused", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "memlock-refused",
            "RLIMIT_MEMLOCK",
            "max locked memory",
            "ibv_reg_mr",
            "ibv_create_cq",
            "ibv_create_qp",
            "memlock",
            pattern=r"RLIMIT_MEMLOCK is \d{1,6} bytes|(?:ibv_reg_mr|"
            r"ibv_create_\w{2}).{0,80}(?:Cannot allocate memory|failed)|(?:increase|"
            r"raise|check)[^\n]{0,40}(?:memlock|max locked memory)|"
            r"max locked memory\s+\(kbytes, -l\)\s+\d{2,5}\s*$",
        ),
    ),
)
