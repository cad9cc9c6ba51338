"""A forked process uses CUDA that its parent has started.

**Checks.** torch's and CUDA's words about an initialization before a fork.

**Why it matters.** What CUDA holds does not survive a fork. It happens where a data set puts
samples on the GPU in a loader's worker, or a module touches CUDA when it is imported.

**Example.** `Cannot re-initialize CUDA in forked subprocess`

**Fix.** Leave samples on the CPU in workers, or start them with `spawn`; by hand.

**Source.** https://docs.pytorch.org/docs/stable/notes/multiprocessing.html
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch or CUDA says so."""
    if not case.sees("cuda-forked"):
        return None
    return Finding(
        rule="cuda-in-forked-process",
        severity="error",
        problem="A forked process uses CUDA, which its parent has started.",
        because="what CUDA holds does not survive a fork",
        evidence=case.evidence("cuda-forked"),
        fixes=(
            Fix(
                text="make no CUDA tensors in data sets and their workers, nor when a module is "
                "imported; or start the processes with "
                '`torch.multiprocessing.set_start_method("spawn")`',
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
