"""No node of the cluster has the GPUs that a pod requests.

**Checks.** The scheduler's "Insufficient nvidia.com/gpu".

**Why it matters.** Nodes offer GPUs through NVIDIA's device plugin. All may be in use, the plugin
may not be running, or the resource may have another name (MIG, time slicing).

**Example.** `0/3 nodes are available: 3 Insufficient nvidia.com/gpu.`

**Fix.** Check what the nodes offer; install the plugin or free a GPU; by hand.

**Source.** https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The scheduler reports it."""
    if not case.sees("gpu-insufficient"):
        return None
    return Finding(
        rule="kubernetes-gpu-not-schedulable",
        severity="error",
        problem="No node of the cluster has the GPUs that the pod requests.",
        evidence=case.evidence("gpu-insufficient"),
        fixes=(Fix(text="free a GPU, or install NVIDIA's device plugin on nodes that offer none"),),
        confirm=(
            "kubectl describe nodes | grep -A8 Allocatable",
            "kubectl get pods -A | grep nvidia-device-plugin",
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "gpu-insufficient",
            "nvidia.com/gpu",
            "nvidia.com/mig",
            pattern=r"Insufficient nvidia\.com/(?:gpu|mig\S{0,20})|requested: \d+, available: 0"
            r"|UnexpectedAdmissionError.{0,120}nvidia\.com",
        ),
    ),
)
