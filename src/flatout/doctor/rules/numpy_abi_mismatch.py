"""A compiled module was built for another NumPy version.

**Checks.** NumPy's own warning about modules compiled for 1.x, sizes and API versions that differ,
and torch without NumPy support. On the machine: NumPy 2 with torch before 2.3 or TensorFlow before
2.18.

**Why it matters.** NumPy 2 changed its binary interface. Modules compiled for 1.x fail with it,
and modules compiled for 2.x may fail with 1.x.

**Example.** `A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0 as it may
crash.`

**Fix.** Run `pip install 'numpy<2'`, or install a newer version of the module; asks first.

**Source.** numpy.org/doc/stable/user/troubleshooting-importerror.html; numpy/numpy#11788.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.framework import Framework
from flatout.schema.machine import Machine

_SIGNS = ("numpy-refused",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS) or case.sees("numpy-not-installed"):
        return None
    # Cython only warns if NumPy's structures grew, which is harmless, and raises if they shrank.
    is_warning = all("RuntimeWarning" in sign.text for sign in case.signs["numpy-refused"])
    return Finding(
        rule="numpy-abi-mismatch",
        severity="note" if is_warning else "error",
        certainty="possible" if is_warning else "decided",
        problem="A compiled module was built for another NumPy version.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install the NumPy version that the module was built for",
                safety="ask",
                commands=("pip install 'numpy<2'",),
                changes="replaces NumPy in this environment",
                undo="pip install --upgrade numpy",
            ),
        ),
        confirm=("pip list | grep -i numpy",),
    )


def _in_facts(machine: Machine) -> Facts:
    """NumPy 2 with a framework that was built before it.

    Source: release notes of torch 2.3 and TensorFlow 2.18.
    """
    first = next(iter(machine.environments or ()), None)
    held: dict[str, Framework] = {one.name: one for one in (first.frameworks if first else ())}
    numpy = held.get("numpy")
    if numpy is None or version(numpy.version) < (2,):
        return ()
    old = [
        held[name]
        for name, built in (("torch", (2, 3)), ("tensorflow", (2, 18)))
        if name in held and version(held[name].version) < built
    ]
    if not old:
        return ()
    return (
        *fact(f"numpy {numpy.version}", "metadata"),
        *fact(f"{old[0].name} {old[0].version} was built for NumPy 1", "metadata"),
    )


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="numpy-refused", read=_in_facts),),
    signatures=(
        signature(
            "numpy-refused",
            "compiled using NumPy 1.x",
            "_ARRAY_API not found",
            "size changed, may indicate binary",
            "module compiled against API version",
            "module compiled against ABI version",
            "Numpy is not available",
            "multiarray failed to import",
            "downgrade to 'numpy<2'",
        ),
        signature("numpy-not-installed", "No module named 'numpy'"),
    ),
    explains=("extension-abi-mismatch",),
)
