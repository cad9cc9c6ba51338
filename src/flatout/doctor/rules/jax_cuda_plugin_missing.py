"""JAX has no CUDA plugin: the installed jaxlib is CPU-only.

**Checks.** JAX's messages about missing platforms and backends. On the machine: JAX without a
plugin, although there is a GPU.

**Why it matters.** `pip install jax` installs the CPU build. So does a package that depends on jax.

**Example.** `An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not
installed. Falling back to cpu.`

**Fix.** `pip install 'jax[cuda12]'`; asks first. Not on native Windows.

**Source.** docs.jax.dev/en/latest/installation.html; jax-ml/jax#10349.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("jax-without-cuda",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS) or case.sees("cuda-was-called"):
        return None
    return Finding(
        rule="jax-cuda-plugin-missing",
        severity="error" if case.sees("jax-refused-gpu") else "warning",
        problem="JAX has no CUDA plugin: the installed jaxlib is CPU-only.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install JAX with its CUDA plugin",
                safety="ask",
                commands=("pip install --upgrade 'jax[cuda12]'",),
                changes="replaces jax and jaxlib in this environment",
            ),
        ),
        confirm=(
            'python -c "import jax; print(jax.devices())"',
            "pip list | grep -i jax",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """JAX has no plugin, although there is a GPU."""
    jax = machine.framework("jax")
    if jax is None or jax.build != "cpu" or not machine.gpus or machine.host.os == "windows":
        return ()
    return (
        *fact(f"jax {jax.version}without a CUDA plugin", "metadata"),
        *fact(machine.gpus[0].name or "a GPU", "NVML"),
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="jax-without-cuda", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "jax-without-cuda",
            "CUDA-enabled jaxlib is not installed",
            "Could not find registered platform with name",
            "Unknown backend",
            "no attribute 'GpuAllocatorConfig'",
            "No GPU/TPU found",
            "platforms that are instances of",
            pattern=r"CUDA-enabled jaxlib is not installed|"
            r"Could not find registered platform with name:? \W{0,3}cuda|"
            r"Unknown backend:? '?(?:gpu|cuda)'? requested|"
            r"no attribute 'GpuAllocatorConfig'|No GPU/TPU found, falling back",
        ),
        signature(
            "jax-refused-gpu",
            "Unknown backend",
            "failed to initialize",
            "RuntimeError",
            pattern=r"Unknown backend|Backend '(?:gpu|cuda)' failed to initialize",
        ),
        signature("cuda-was-called", "failed call to cuInit", "cuInit(0) failed"),
    ),
)
