"""A package was installed without its compiled extension.

**Checks.** Missing compiled modules, by name.

**Why it matters.** When installed from source without a compiler or a GPU, some packages skip their
kernels and fail at first use.

**Example.** `ModuleNotFoundError: No module named 'mmcv._ext'`

**Fix.** Install the package's own wheel for this torch, or build it with the CUDA toolkit; asks
first.

**Source.** github.com/open-mmlab/mmcv, installation; IDEA-Research/GroundingDINO#142.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("compiled-part-absent",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="extension-not-compiled",
        severity="error",
        problem="A package was installed without its compiled extension.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "install the package's wheel for this torch and CUDA, or build it "
                    "on a machine with the CUDA toolkit"
                ),
            ),
        ),
        confirm=(
            "pip list",
            "nvcc --version",
        ),
    )


RULE = Rule(
    check=check,
    prior=45,
    signatures=(
        signature(
            "compiled-part-absent",
            "No module named",
            "name '_C' is not defined",
            "cannot import name '_C'",
            "MultiScaleDeformableAttention",
            pattern=r"No module named '?(?:mmcv\._ext|flash_attn_2_cuda|flash_attn_cuda|"
            r"selective_scan_cuda|causal_conv1d_cuda|amp_C|fused_layer_norm_cuda|"
            r"MultiScaleDeformableAttention|_ext|vllm\._C|pointnet2\w*|"
            r"torch_(?:scatter|sparse|cluster)\._\w+|\w+_cuda)'?|"
            r"name '_C' is not defined|cannot import name '_C' from",
        ),
    ),
)
