"""This torch build lacks the backend: NCCL is only in CUDA builds for Linux.

**Checks.** torch's error about a backend that is not built in.

**Why it matters.** Wheels for Windows and macOS and CPU builds lack NCCL. All of them include Gloo.

**Example.** `RuntimeError: Distributed package doesn't have NCCL built in`

**Fix.** Use `backend="gloo"`; or WSL 2 or Linux with a CUDA build of torch.

**Source.** docs.pytorch.org/docs/stable/distributed.html (backends); pytorch/pytorch:
torch/distributed/distributed_c10d.py.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch's error about a backend that is not built in."""
    if not case.sees("backend-not-built-in"):
        return None
    return Finding(
        rule="distributed-backend-not-in-build",
        severity="error",
        problem="This torch build lacks the backend: NCCL is only in CUDA builds for Linux.",
        because="only CUDA builds for Linux include NCCL",
        evidence=case.evidence("backend-not-built-in"),
        fixes=(
            Fix(
                text='use Gloo on this machine: `init_process_group(backend="gloo")`',
            ),
            Fix(
                text="or train under WSL 2 or Linux with a CUDA build",
                safety="manual",
            ),
        ),
        confirm=('python -c "import torch.distributed as d; print(d.is_nccl_available())"',),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "backend-not-built-in",
            "have NCCL built in",
            "have MPI built in",
            "have Gloo built in",
            "have UCC built in",
            "NCCL backend is not available",
            "use_libuv was requested",
            pattern=r"Distributed package doesn.?t have (?:NCCL|MPI|Gloo|UCC) built in"
            r"|NCCL backend is not available|use_libuv was requested but",
        ),
    ),
    explains=("distributed-worker-failed",),
)
