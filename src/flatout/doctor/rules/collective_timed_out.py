"""A collective operation timed out: a rank is out of step, slow or gone.

**Checks.** Timeouts of the NCCL, Gloo and XLA watchdogs.

**Why it matters.** All ranks must make the same calls. A rank that failed, skipped a batch, takes
longer than the limit to save a checkpoint, or hangs in a peer copy keeps all others waiting.

**Example.** `Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE,
...)`

**Fix.** Find the first rank with another message. Give every rank the same number of batches, and
slow steps a longer `timeout=`; by hand.

**Source.** pytorch/pytorch: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp;
docs.pytorch.org/docs/stable/distributed.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Timeouts of the NCCL, Gloo and XLA watchdogs."""
    if not case.sees("collective-timed-out"):
        return None
    return Finding(
        rule="collective-timed-out",
        severity="error",
        certainty="likely",
        problem="A collective operation timed out: a rank is out of step, slow or gone.",
        because="all ranks must make the same calls in the same order",
        evidence=case.evidence("collective-timed-out"),
        fixes=(
            Fix(
                text=(
                    "read the first message of every rank, above all of a rank without this message"
                ),
            ),
            Fix(
                text="see which call each rank is in",
                safety="safe",
                commands=("export TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_DEBUG=INFO",),
                changes="environment variables of this shell",
            ),
        ),
        confirm=(
            "NCCL_P2P_DISABLE=1 <the same command>",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL <the same command>",
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "collective-timed-out",
            "collective operation timeout",
            "operations have failed or timed out",
            "ms for recv operation",
            "ms for send operation",
            "monitoredBarrier",
            "last enqueued NCCL work",
            pattern=r"collective operation timeout(?:: WorkNCCL\(SeqNum=(?P<first>[12]),)?"
            r"|NCCL operations have failed or timed out|Timed out waiting \d+ms for"
            r" (?:recv"
            r"|send) operation|monitoredBarrier.{0,60}(?:failed|timeout|reach)"
            r"|last enqueued NCCL work: (?P<enqueued>\d+)",
        ),
    ),
    explains=("distributed-worker-failed",),
)
