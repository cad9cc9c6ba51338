"""One rank failed, and the others were terminated with it.

**Checks.** torchrun's report of a failed child, and ranks that lost their peer.

**Why it matters.** The last message is rarely the cause; the first message of the first failed rank
is.

**Example.** `torch.distributed.elastic.multiprocessing.errors.ChildFailedError`

**Fix.** Read that rank's own message; `--tee 3` or `@record` reveals it.

**Source.** docs.pytorch.org/docs/stable/elastic/errors.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torchrun's report of a failed child, and ranks that lost their peer."""
    if not case.sees("torchrun-child-failed", "nccl-peer-lost"):
        return None
    return Finding(
        rule="distributed-worker-failed",
        severity="error",
        certainty="possible",
        problem="One rank failed, and the others were terminated with it.",
        because="the cause is the first message of the first failed rank",
        evidence=case.evidence("torchrun-child-failed", "nccl-peer-lost"),
        fixes=(
            Fix(
                text="keep each rank's output",
                safety="ask",
                commands=(
                    "torchrun --log-dir logs --redirects 3 --tee 3 --nproc-per-node=gpu <script>",
                ),
                changes="writes logs/",
            ),
        ),
        confirm=("torchrun --log-dir logs --tee 3 <the same arguments>",),
    )


RULE = Rule(
    check=check,
    prior=10,
    signatures=(
        signature(
            "torchrun-child-failed",
            "ChildFailedError",
            "Root Cause (first observed failure)",
            "ProcessRaisedException",
            "ProcessExitedException",
        ),
        signature(
            "nccl-peer-lost",
            "ncclRemoteError",
            "Connection closed by remote peer",
            "Connection reset by peer",
            "remote process exited",
            "Connection closed by peer",
            pattern=r"ncclRemoteError|(?:NCCL|gloo|pair\.cc|c10d"
            r"|TCPStore).{0,200}(?:closed by (?:remote )?peer|reset by peer"
            r"|remote process exited)",
        ),
    ),
)
