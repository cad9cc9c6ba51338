"""InfiniBand or RoCE connects, and packets do not arrive.

**Checks.** Completions with errors that NCCL or UCX report.

**Why it matters.** Error 12 means that a peer did not answer: a link that is down, another subnet
or GID index, or switches without lossless flow control.

**Example.** `NET/IB : Got completion from peer 10.0.0.2<40513> with error 12, opcode 0, len 0,
vendor err 129`

**Fix.** See links and addresses, set NCCL_IB_HCA and NCCL_IB_GID_INDEX; or NCCL_IB_DISABLE=1,
over TCP and slower; safe.

**Source.** NCCL, environment variables
(docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html); NVIDIA/nccl: net_ib.cc.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Completions with errors that NCCL or UCX report."""
    if not case.sees("infiniband-completion-error"):
        return None
    return Finding(
        rule="infiniband-peer-unreachable",
        severity="error",
        certainty="likely",
        problem="InfiniBand or RoCE connects, and packets do not arrive.",
        because="a peer did not answer over this port and address",
        evidence=case.evidence("infiniband-completion-error"),
        fixes=(
            Fix(
                text="see the links, then name ports and GID index",
                safety="safe",
                commands=("ibstat", "show_gids", "export NCCL_IB_HCA=<port> NCCL_IB_GID_INDEX=3"),
                changes="the environment of this shell",
            ),
            Fix(
                text="go over TCP instead",
                safety="safe",
                commands=("export NCCL_IB_DISABLE=1",),
                changes="the environment of this shell",
                undo="unset NCCL_IB_DISABLE",
            ),
        ),
        confirm=("ibstat", "ib_write_bw <other machine>"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "infiniband-completion-error",
            "Got completion from peer",
            "Got completion",
            "IBV_WC_RETRY_EXC_ERR",
            "ibv_modify_qp",
            "local protection error",
            pattern=r"Got completion .{0,120}(?:error|status)|IBV_WC_RETRY_EXC_ERR"
            r"|ibv_modify_qp.{0,60}(?:failed|error)",
        ),
    ),
    explains=("nccl-socket-interface", "distributed-worker-failed", "collective-timed-out"),
)
