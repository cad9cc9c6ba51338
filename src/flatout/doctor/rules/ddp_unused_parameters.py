"""DistributedDataParallel waits for parameters that do not contribute to the loss.

**Checks.** DDP's error about an unfinished reduction.

**Why it matters.** DDP averages each parameter's gradient as it becomes ready. A parameter that the
loss does not depend on never becomes ready.

**Example.** `RuntimeError: Expected to have finished reduction in the prior iteration before
starting a new one.`

**Fix.** Freeze such parameters with `requires_grad_(False)`, or pass `find_unused_parameters=True`,
which costs an extra graph traversal; by hand.

**Source.** docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """DDP's error about an unfinished reduction."""
    if not case.sees("ddp-not-reduced"):
        return None
    return Finding(
        rule="ddp-unused-parameters",
        severity="error",
        problem="DistributedDataParallel waits for parameters that do not contribute to the loss.",
        because="the loss of this step does not depend on all parameters that require a gradient",
        evidence=case.evidence("ddp-not-reduced"),
        fixes=(
            Fix(
                text="freeze unused parameters, or pass `find_unused_parameters=True`",
            ),
            Fix(
                text="list the unused parameters",
                safety="safe",
                commands=("export TORCH_DISTRIBUTED_DEBUG=DETAIL",),
                changes="environment variables of this shell",
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
