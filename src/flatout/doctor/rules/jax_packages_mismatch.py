"""JAX, jaxlib and the CUDA plugin have different versions, or there are two plugins.

**Checks.** JAX's messages about its packages' versions, and plugins for CUDA 12 and 13 side by
side. On the machine: the requirements in their metadata, and the installed plugins.

**Why it matters.** All JAX packages must have the same version, and only one plugin may register
the platform.

**Example.** `jaxlib version 0.4.30 is newer than and incompatible with jax version 0.4.20.`

**Fix.** Remove all JAX packages and reinstall JAX; asks first.

**Source.** docs.jax.dev/en/latest/installation.html; jax-ml/jax#24901, #26750.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, unmet
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("jax-versions-differ",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="jax-packages-mismatch",
        severity="error",
        problem=(
            "JAX, jaxlib and the CUDA plugin have different versions, or there are two plugins."
        ),
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="remove all JAX packages, and reinstall JAX",
                safety="ask",
                commands=(
                    (
                        "pip uninstall jax jaxlib jax-cuda12-plugin jax-cuda12-pjrt "
                        "jax-cuda13-plugin jax-cuda13-pjrt"
                    ),
                    "pip install 'jax[cuda12]'",
                ),
                changes="replaces JAX in this environment",
            ),
        ),
        confirm=("pip list | grep -i jax",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Two plugins, or incompatible versions."""
    first = next(iter(machine.environments or ()), None)
    plugins = [one for one in (first.frameworks if first else ()) if "plugin" in one.name]
    names = {"jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"}
    both = fact(" and ".join(one.name for one in plugins), "metadata") if len(plugins) > 1 else ()
    return (*both, *unmet(machine, names))


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="jax-versions-differ", read=_in_facts),),
    signatures=(
        signature(
            "jax-versions-differ",
            "incompatible with jax version",
            "installed jaxlib version",
            "jaxlib version",
            "requires jaxlib",
            "PJRT_Api already exists",
            "ALREADY_EXISTS: PJRT_Api",
            "jax_cuda12_plugin",
            "jax-cuda12-plugin",
            "jax_cuda13_plugin",
            "from 'jax._src",
            "from 'jaxlib",
            "module 'jaxlib",
            "module 'jax._src",
            pattern=r"cannot import name '\w{1,60}' from 'jax(?:lib|\._src)|"
            r"AttributeError: module 'jax(?:lib|\._src)\S{0,60}' has no attribute|"
            r"jaxlib version \S{1,20} is (?:newer than and )?incompatible|"
            r"incompatible with jax version|"
            r"not compatible with the installed jaxlib|"
            r"jax requires (?:at least )?jaxlib|PJRT_Api already exists|"
            r"ALREADY_EXISTS: PJRT_Api|"
            r"jax[_-]cuda1[23][_-]plugin version \S{1,20} is installed, but|"
            r"jaxlib is version \S{1,20}, but this version of jax requires",
        ),
    ),
    explains=(
        "jax-cuda-plugin-missing",
        "jax-cuda-plugin-init-failed",
    ),
)
