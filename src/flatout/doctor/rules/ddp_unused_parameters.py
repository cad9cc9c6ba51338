"""Parameters took no part in a loss, and DistributedDataParallel waits for them.

**Checks.** DDP's complaint of a reduction that was not finished.

**Why it matters.** DDP averages each parameter's gradient as it becomes ready. One that the loss
does not depend on never does.

**Example.** `RuntimeError: Expected to have finished reduction in the prior iteration before
starting a new one.`

**Fix.** Freeze such parameters with `requires_grad_(False)`, or `find_unused_parameters=True`,
which costs a pass over the graph; by hand.

**Source.** docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """DDP's complaint of a reduction that was not finished."""
    if not case.sees("ddp-not-reduced"):
        return None
    return Finding(
        rule="ddp-unused-parameters",
        severity="error",
        problem="Parameters took no part in a loss, and DistributedDataParallel waits for them.",
        because="the loss of this step does not depend on all parameters that want a gradient",
        evidence=case.evidence("ddp-not-reduced"),
        fixes=(
            Fix(
                text="freeze parameters that are not used, or pass `find_unused_parameters=True`",
            ),
            Fix(
                text="see which ones",
                safety="safe",
                commands=("export TORCH_DISTRIBUTED_DEBUG=DETAIL",),
                changes="the environment of this shell",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "ddp-not-reduced",
            "finished reduction in the prior iteration",
            "marked as ready twice",
            "marked a variable ready twice",
        ),
    ),
    explains=("distributed-worker-failed",),
)
