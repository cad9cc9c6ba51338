"""bitsandbytes has no library for this CUDA version.

**Checks.** bitsandbytes' messages about libraries it cannot find, and calls into its CPU library.

**Why it matters.** The package contains one library per CUDA version. For any other version, or
without CUDA, it loads the CPU library, which lacks these functions.

**Example.** `Required library version not found: libbitsandbytes_cuda121_nocublaslt.so`

**Fix.** Install a newer bitsandbytes, and unset BNB_CUDA_VERSION; asks first.

**Source.** huggingface.co/docs/bitsandbytes/installation;
bitsandbytes-foundation/bitsandbytes#1559, #386.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("bitsandbytes-broken",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="bitsandbytes-cuda-binary-missing",
        severity="error",
        problem="bitsandbytes has no library for this CUDA version.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "install a bitsandbytes version that supports this CUDA version, "
                    "and leave BNB_CUDA_VERSION unset"
                ),
                safety="ask",
                commands=("pip install --upgrade bitsandbytes",),
                changes="replaces bitsandbytes in this environment",
            ),
        ),
        confirm=("python -m bitsandbytes",),
    )


RULE = Rule(
    check=check,
    prior=65,
    signatures=(
        signature(
            "bitsandbytes-broken",
            "bitsandbytes",
            "libbitsandbytes",
            "CUDA Setup failed despite",
            "cget_col_row_stats",
            "cquantize_blockwise",
            "cadam",
            "CUDA SETUP",
            pattern=r"CUDA Setup failed despite GPU|bitsandbytes was compiled without GPU|"
            r"(?:Required library version not found|"
            r"find the bitsandbytes CUDA binary|[Cc]onfigured (?:CUDA|"
            r"ROCm) binary not found|not load bitsandbytes native library)|"
            r"libbitsandbytes_\w+\.(?:so|dll)[^\n]{0,40}(?:undefined symbol|"
            r"not found|cannot open)|object has no attribute 'c(?:get_|quantize|"
            r"adam|dequantize|int8)\w*'|CUDA SETUP: (?:CUDA detection failed|"
            r"Problem: |Something unexpected|"
            r"Loading binary \S{1,300}libbitsandbytes_cpu)|"
            r"CUDA detection failed! Possible reasons|"
            r"does not contain a CUDA binary|undefined symbol: c(?:get_|quantize|"
            r"adam|dequantize)\w+",
        ),
    ),
    explains=(
        "cuda-runtime-library-missing",
        "extension-abi-mismatch",
    ),
)
