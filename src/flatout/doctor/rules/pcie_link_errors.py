"""A PCI Express link reports errors.

**Checks.** The kernel's AER lines, and links that run with fewer lanes than possible.

**Why it matters.** Many corrected errors slow down transfers and are an early sign of a card
falling off the bus; uncorrected ones kill programs. The causes are risers, slots and link speed.

**Example.** `PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer`

**Fix.** Reseat the card, remove risers, set the slot to the next lower PCIe generation; by hand.

**Source.** https://docs.kernel.org/PCI/pcieaer-howto.html
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """AER lines; corrected errors are only a note."""
    is_hard = case.sees("aer-uncorrected")
    if not is_hard and not case.sees("aer-corrected"):
        return None
    return Finding(
        rule="pcie-link-errors",
        severity="warning" if is_hard else "note",
        certainty="likely" if is_hard else "possible",
        problem="A device's PCI Express link reports errors.",
        evidence=case.evidence("aer-uncorrected", "aer-corrected"),
        fixes=(
            Fix(
                text=(
                    "reseat the card, without a riser, or set its slot to the next lower "
                    "PCIe generation in the firmware"
                ),
                where="host",
            ),
        ),
        confirm=("sudo dmesg | grep -i 'PCIe Bus Error'", "lspci -d 10de: -vv | grep LnkSta"),
    )


RULE = Rule(
    check=check,
    prior=30,
    signatures=(
        signature(
            "aer-uncorrected",
            "PCIe Bus Error",
            pattern=r"PCIe Bus Error: severity=(?:Uncorrect|Fatal)",
        ),
        signature(
            "aer-corrected",
            "PCIe Bus Error",
            "AER",
            pattern=r"PCIe Bus Error: severity=Correct|AER: (?:Multiple )?Corrected error",
        ),
    ),
)
