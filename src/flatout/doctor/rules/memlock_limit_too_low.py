"""The limit of locked memory is too low for RDMA or pinned memory.

**Checks.** What InfiniBand's libraries, NCCL and UCX say of RLIMIT_MEMLOCK.

**Why it matters.** InfiniBand registers memory that must stay in place. With 64 KiB allowed NCCL
fails or goes over sockets.

**Example.** `libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.`

**Fix.** Raise the limit: `--ulimit memlock=-1` for a container, limits.conf or the scheduler
elsewhere; by hand.

**Source.** docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html;
github.com/openucx/ucx, FAQ.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

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


RULE = Rule(
    check=check,
    prior=50,
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
