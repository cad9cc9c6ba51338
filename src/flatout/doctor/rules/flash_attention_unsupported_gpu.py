"""FlashAttention has no kernels for this GPU.

**Checks.** Errors of flash-attn, torch and xFormers about unsupported cards.

**Why it matters.** FlashAttention 2 needs compute capability 8.0 (RTX 30, A100) or later,
FlashAttention 3 9.0. torch's own scaled_dot_product_attention selects a kernel that works.

**Example.** `FlashAttention only supports Ampere GPUs or newer.`

**Fix.** `attn_implementation="sdpa"`, or torch's scaled_dot_product_attention; by hand.

**Source.** https://github.com/Dao-AILab/flash-attention (requirements)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The library rejects the card."""
    if not case.sees("flash-attention-refused"):
        return None
    return Finding(
        rule="flash-attention-unsupported-gpu",
        severity="error",
        problem="FlashAttention has no kernels for this GPU.",
        evidence=case.evidence("flash-attention-refused", "compute-capability", "gpu-name"),
        fixes=(
            Fix(
                text=(
                    'use torch\'s attention: `attn_implementation="sdpa"` in transformers, '
                    "scaled_dot_product_attention in your own models"
                ),
            ),
        ),
        confirm=("nvidia-smi --query-gpu=name,compute_cap --format=csv",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "flash-attention-refused",
            "FlashAttention only supports",
            "FlashAttention forward only supports",
            "FlashAttention backward",
            "Flash Attention",
            "flash attention",
            pattern=r"Flash ?Attention(?:-?\d)? (?:forward |backward )?(?:for head dim .{0,20})?"
            r"(?:only supports|only works|requires) .{0,40}(?:GPUs?|[AH]100|capability)",
        ),
    ),
)
