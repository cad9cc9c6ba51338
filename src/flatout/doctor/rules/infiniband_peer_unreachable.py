"""InfiniBand or RoCE connects, but packets do not arrive.

**Checks.** Completion errors reported by NCCL or UCX.

**Why it matters.** Error 12 means that a peer did not answer: the link is down, the subnet or GID
index differs, or the switches lack lossless flow control.

**Example.** `NET/IB : Got completion from peer 10.0.0.2<40513> with error 12, opcode 0, len 0,
vendor err 129`

**Fix.** Check links and addresses, and set NCCL_IB_HCA and NCCL_IB_GID_INDEX; or use slower TCP
with NCCL_IB_DISABLE=1; safe.

**Source.** NCCL, environment variables
(docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html); NVIDIA/nccl: net_ib.cc.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Completion errors reported by NCCL or UCX."""
    if not case.sees("infiniband-completion-error"):
        return None
    return Finding(
        rule="infiniband-peer-unreachable",
        severity="error",
        certainty="likely",
        problem="InfiniBand or RoCE connects, but packets do not arrive.",
        because="a peer did not answer over this port and address",
        evidence=case.evidence("infiniband-completion-error"),
        fixes=(
            Fix(
                text="check the links, then set the ports and the GID index",
                safety="safe",
                commands=("ibstat", "show_gids", "export NCCL_IB_HCA=<port> NCCL_IB_GID_INDEX=3"),
                changes="environment variables of this shell",
            ),
            Fix(
                text="or use TCP instead",
                safety="safe",
                commands=("export NCCL_IB_DISABLE=1",),
                changes="environment variables of this shell",
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
