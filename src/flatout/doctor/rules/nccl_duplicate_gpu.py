"""Two ranks use the same GPU.

**Checks.** NCCL's error about two ranks on one device.

**Why it matters.** NCCL needs one GPU per rank. Ranks that never call
`torch.cuda.set_device(local_rank)` all use GPU 0; more ranks than GPUs share some.

**Example.** `NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000`

**Fix.** `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the first collective, and
no more ranks than GPUs; by hand.

**Source.** NVIDIA/nccl: init.cc; docs.pytorch.org/docs/stable/distributed.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """NCCL reports it, or all ranks name the same device."""
    if not case.sees("nccl-same-gpu", "rank-device-unknown"):
        return None
    is_explicit = case.sees("nccl-same-gpu")
    return Finding(
        rule="nccl-duplicate-gpu",
        severity="error" if is_explicit else "note",
        certainty="decided" if is_explicit else "possible",
        problem="Two ranks use the same GPU.",
        because="each rank needs its own GPU, and uses GPU 0 by default",
        evidence=case.evidence("nccl-same-gpu", "rank-device-unknown", "nccl-invalid-usage"),
        fixes=(
            Fix(
                text='call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the'
                " first collective",
            ),
            Fix(
                text="start no more ranks on a machine than it has GPUs",
                safety="safe",
                commands=("torchrun --nproc-per-node=gpu <script>",),
                changes="this run",
            ),
        ),
        confirm=(
            "nvidia-smi --query-compute-apps=pid,gpu_uuid --format=csv",
            "echo $CUDA_VISIBLE_DEVICES",
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "nccl-same-gpu",
            "Duplicate GPU detected",
            "Duplicate GPU",
            "Duplicated GPU",
            "both on CUDA device",
            "multiple ranks",
            "same GPU",
            "same CUDA device",
            pattern=r"Duplicated? GPU|both on CUDA device|(?:two|multiple|several"
            r"|more than one) (?:ranks|processes|workers).{0,40}same (?:GPU|CUDA device"
            r"|device).{0,40}(?:nccl|not supported|not allowed)|ranks?"
            r" .{0,30}(?:share|using|use"
            r"|on) the same (?:GPU|CUDA device)",
        ),
        signature(
            "rank-device-unknown",
            "devices used by this process are currently unknown",
            "Guessing device ID based on global rank",
        ),
        signature(
            "nccl-invalid-usage",
            "ncclInvalidUsage",
        ),
    ),
    explains=(
        "distributed-worker-failed",
        "nccl-socket-interface",
        "nccl-version-or-cuda-mismatch",
    ),
)
