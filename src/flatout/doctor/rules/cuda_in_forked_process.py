"""A forked process uses CUDA, which its parent has already initialized.

**Checks.** torch's and CUDA's errors about initialization before a fork.

**Why it matters.** A CUDA context does not survive a fork. This happens if a data set moves samples
to the GPU in a loader worker, or a module uses CUDA when imported.

**Example.** `Cannot re-initialize CUDA in forked subprocess`

**Fix.** Keep samples on the CPU in workers, or start them with `spawn`; by hand.

**Source.** https://docs.pytorch.org/docs/stable/notes/multiprocessing.html
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch or CUDA reports it."""
    if not case.sees("cuda-forked"):
        return None
    return Finding(
        rule="cuda-in-forked-process",
        severity="error",
        problem="A forked process uses CUDA, which its parent has already initialized.",
        because="a CUDA context does not survive a fork",
        evidence=case.evidence("cuda-forked"),
        fixes=(
            Fix(
                text=(
                    "create no CUDA tensors in data sets, in their workers or at import "
                    "time; or start the processes with "
                    '`torch.multiprocessing.set_start_method("spawn")`'
                ),
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=70,
    signatures=(
        signature(
            "cuda-forked",
            "CUDA in forked subprocess",
            "initialization error",
            "poison_fork",
            "before forking",
            "CUDA_ERROR_NOT_INITIALIZED",
            pattern=r"Cannot re-initialize CUDA in forked|_in_bad_fork|poison_fork"
            r"|(?:CUDA|GPU).{0,60}(?:initiali[sz]ed|used|started) before (?:the )?fork(?:ing)?"
            r"|worker process \d+.{0,200}CUDA error: initialization error",
        ),
    ),
)
