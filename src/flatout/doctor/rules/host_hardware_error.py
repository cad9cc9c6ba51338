"""The processor, memory or mainboard reports hardware errors.

**Checks.** The kernel's machine checks, and memory errors counted by EDAC.

**Why it matters.** A machine with hardware errors gives wrong training results. Uncorrected errors
kill programs; many corrected errors are an early warning.

**Example.** `mce: [Hardware Error]: Machine check events logged`

**Fix.** Undo overclocking and memory profiles, test the memory, update the firmware; by hand.

**Source.** https://docs.kernel.org/admin-guide/RAS/index.html
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The kernel logged a hardware error: an uncorrected one, or one of any kind."""
    is_hard = case.sees("machine-check-hard")
    if not is_hard and not case.sees("machine-check"):
        return None
    return Finding(
        rule="host-hardware-error",
        severity="error" if is_hard else "warning",
        certainty="decided" if is_hard else "possible",
        problem="The processor, memory or mainboard reports hardware errors.",
        evidence=case.evidence("machine-check-hard", "machine-check"),
        fixes=(
            Fix(
                text=(
                    "undo overclocking and memory profiles (XMP, EXPO), update the "
                    "firmware, and test the memory overnight"
                ),
                where="host",
            ),
        ),
        confirm=("sudo dmesg | grep -iE 'mce|EDAC|Hardware Error'",),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "machine-check-hard",
            "Hardware Error",
            "EDAC",
            "Machine check",
            pattern=r"Kernel panic.{0,60}Machine check|EDAC.{0,60}\b[1-9]\d* UE\b"
            r"|\[Hardware Error\].{0,60}(?:Uncorrected|uncorrectable|Fatal)",
        ),
        signature(
            "machine-check",
            "Hardware Error",
            "EDAC",
            pattern=r"mce: \[Hardware Error\]|\[Hardware Error\]: |EDAC.{0,60}\b[1-9]\d* CE\b",
        ),
    ),
)
