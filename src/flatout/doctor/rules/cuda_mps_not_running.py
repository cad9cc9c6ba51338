"""CUDA's Multi-Process Service (MPS) is enabled but does not answer.

**Checks.** CUDA's errors 805 to 809.

**Why it matters.** If CUDA_MPS_PIPE_DIRECTORY is set or another user's control daemon runs, every
CUDA program connects to MPS, and fails if it is gone.

**Example.** `MPS client failed to connect to the MPS control daemon or the MPS server`

**Fix.** Start the daemon as the same user, or stop it and unset the variable; asks first.

**Source.** https://docs.nvidia.com/deploy/mps
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """CUDA cannot reach the service."""
    if not case.sees("cuda-mps-failed"):
        return None
    return Finding(
        rule="cuda-mps-not-running",
        severity="error",
        problem="CUDA's Multi-Process Service (MPS) is enabled but does not answer.",
        evidence=case.evidence("cuda-mps-failed"),
        fixes=(
            Fix(
                text="stop the remaining MPS processes, and run without MPS",
                safety="ask",
                commands=(
                    "echo quit | nvidia-cuda-mps-control",
                    "unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY",
                ),
                where="host",
                changes="stops every program that uses MPS",
                undo="nvidia-cuda-mps-control -d",
            ),
        ),
        confirm=("ps -ef | grep nvidia-cuda-mps", "printenv | grep MPS"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "cuda-mps-failed",
            "MPS client failed to connect",
            "CUDA_ERROR_MPS_CONNECTION_FAILED",
            "CUDA_ERROR_MPS_RPC_FAILURE",
            "CUDA_ERROR_MPS_SERVER_NOT_READY",
            "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
            "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
            "cudaErrorMpsConnectionFailed",
            "cudaErrorMpsServerNotReady",
            "cudaErrorMpsRpcFailure",
            "MPS server is not ready",
        ),
    ),
)
