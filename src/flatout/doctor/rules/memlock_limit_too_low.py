"""The limit of locked memory is too low for RDMA or pinned memory.

**Checks.** What InfiniBand's libraries, NCCL and UCX say of RLIMIT_MEMLOCK. On the machine: an
InfiniBand or RoCE device, and a limit of 64 MiB or less.

**Why it matters.** InfiniBand registers memory that must stay in place. With 64 KiB allowed NCCL
fails or goes over sockets.

**Example.** `libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.`

**Fix.** Raise the limit: `--ulimit memlock=-1` for a container, limits.conf or the scheduler
elsewhere; by hand.

**Source.** docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html;
github.com/openucx/ucx, FAQ.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.units import bytes_text

_SIGNS = ("memlock-refused",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="memlock-limit-too-low",
        severity="warning",
        problem="The limit of locked memory is too low for RDMA or pinned memory.",
        because="memory for RDMA must be locked",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="allow unlimited locked memory",
                commands=("docker run --ulimit memlock=-1 --ulimit stack=67108864 ...",),
                where="host",
                changes="the container or the session is started anew",
            ),
        ),
        confirm=("ulimit -l",),
    )


def _in_facts(machine: Machine) -> Facts:
    """There is a device for RDMA, and little memory may be locked for it."""
    limit = machine.limits.locked_bytes if machine.limits else None
    if limit is None or limit > 64 * 2**20:
        return ()
    if machine.network is None or not machine.network.has_infiniband:
        return ()
    return (
        *fact(f"{bytes_text(limit)} of memory may be locked", "/proc/self/limits"),
        *fact("a device for RDMA", "/sys/class/infiniband"),
    )


RULE = Rule(
    check=check,
    prior=50,
    readings=(Reading(sign="memlock-refused", read=_in_facts, severity="warning"),),
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
