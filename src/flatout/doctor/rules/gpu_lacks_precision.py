"""The GPU does not support the requested precision.

**Checks.** Errors of transformers, Lightning, vLLM, DeepSpeed and others about bf16, fp8 and tf32.

**Why it matters.** bf16 and TF32 need compute capability 8.0 (Ampere: RTX 30, A100), FP8 8.9
(RTX 40, H100). Older cards compute in float16 or float32.

**Example.** `Your setup doesn't support bf16/gpu.`

**Fix.** Use float16 with loss scaling, or float32; by hand.

**Source.** https://docs.nvidia.com/cuda/cuda-c-programming-guide (compute capabilities)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """A program rejects the precision."""
    if not case.sees("precision-refused"):
        return None
    return Finding(
        rule="gpu-lacks-precision",
        severity="error",
        problem="The device does not support the requested precision.",
        because="bf16 and TF32 need compute capability 8.0, FP8 8.9",
        evidence=case.evidence("precision-refused", "compute-capability", "gpu-name"),
        fixes=(Fix(text="use float16 with loss scaling, or float32 (flatout: `precision`)"),),
        confirm=("nvidia-smi --query-gpu=name,compute_cap --format=csv",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "precision-refused",
            "bf16",
            "bfloat16",
            "fp8",
            "float8",
            "tf32",
            "FP16 Mixed precision",
            pattern=r"(?:doesn't|does not|not) support(?:ed)?.{0,30}\b(?:bf16|bfloat16|fp8|tf32)"
            r"|\b(?:bf16|bfloat16|fp8|float8)\b.{0,60}(?:(?:is|are) not supported (?:on|by)"
            r"|only supported on GPUs|requires? (?:compute capability|device with|GPUs? with"
            r"|Ampere))|--tf32 requires|FP16 Mixed precision training with AMP.{0,120}CUDA devices",
        ),
    ),
)
