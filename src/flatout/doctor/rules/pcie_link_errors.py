"""The PCI Express link reports errors.

**Checks.** The kernel's AER lines, and links that run with fewer lanes than they could.

**Why it matters.** Corrected errors in numbers make transfers slow and announce a card that falls
off the bus; uncorrected ones end what runs. Risers, slots and link speed are behind them.

**Example.** `PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer`

**Fix.** Seat the card anew, leave risers out, set the slot to the next lower PCIe generation; by
hand.

**Source.** https://docs.kernel.org/PCI/pcieaer-howto.html
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """AER lines; corrected errors are a note."""
    is_hard = case.sees("aer-uncorrected")
    if not is_hard and not case.sees("aer-corrected"):
        return None
    return Finding(
        rule="pcie-link-errors",
        severity="warning" if is_hard else "note",
        certainty="likely" if is_hard else "possible",
        problem="The PCI Express link of a device reports errors.",
        evidence=case.evidence("aer-uncorrected", "aer-corrected"),
        fixes=(
            Fix(
                text="seat the card anew, without a riser, or set its slot to the next lower PCIe "
                "generation in the firmware",
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
