"""JAX's CUDA plugin is installed but failed to initialize.

**Checks.** Exceptions during the plugin's initialization, and CUDA components that it finds too old
or missing.

**Why it matters.** The plugin checks the driver and the CUDA libraries and stops at the first
mismatch; a CUDA on LD_LIBRARY_PATH is the usual reason.

**Example.** `Jax plugin configuration error: Exception when calling
jax_plugins.xla_cuda12.initialize()`

**Fix.** Leave LD_LIBRARY_PATH unset, in this shell; safe.

**Source.** jax-ml/jax#30050; docs.jax.dev/en/latest/installation.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_DECISIVE = ("jax-plugin-raised",)
_AMBIGUOUS = ("jax-backend-failed",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_DECISIVE, *_AMBIGUOUS):
        return None
    return Finding(
        rule="jax-cuda-plugin-init-failed",
        severity="error",
        certainty=case.certainty(*_DECISIVE),
        problem="JAX's CUDA plugin is installed but failed to initialize.",
        evidence=case.evidence(*_DECISIVE, *_AMBIGUOUS),
        fixes=(
            Fix(
                text="start without a system CUDA on the loader's path",
                safety="safe",
                commands=("unset LD_LIBRARY_PATH",),
                changes="only this shell",
                undo="close the shell",
            ),
        ),
        confirm=(
            'python -c "import jax; print(jax.devices())"',
            "pip list | grep -iE 'jax|nvidia'",
            "nvidia-smi",
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "jax-plugin-raised",
            "jax_plugins",
            "Jax plugin configuration error",
            "Unable to load cuSPARSE",
            "Unable to load cuDNN",
            "Unable to load cuBLAS",
            "Unable to load cuSOLVER",
            "Unable to load cuFFT",
            "Unable to load CUPTI",
            "Unable to load CUDA",
            "against which JAX was built",
            "Version JAX was built against",
            "CUDA backend failed to initialize",
            "issues with CUDA components",
            pattern=r"Exception when calling jax_plugins|Unable to load (?:cu\w+|CUDA|"
            r"CUPTI)\. Is it installed|JAX was built against|"
            r"CUDA backend failed to initialize|issues with CUDA components",
        ),
        signature(
            "jax-backend-failed",
            "Unable to initialize backend",
            "failed to initialize:",
            "no supported devices found for platform CUDA",
            "cuInit(0) failed",
            pattern=r"Unable to initialize backend '(?:cuda|gpu)': (?:INTERNAL|"
            r"FAILED_PRECONDITION|UNKNOWN|ABORTED|Found|Unable)|Backend '(?:cuda|"
            r"gpu)' failed to initialize: (?!NOT_FOUND)|"
            r"no supported devices found for platform CUDA|"
            r"operation cuInit\(0\) failed",
        ),
    ),
    explains=("jax-cuda-plugin-missing",),
)
