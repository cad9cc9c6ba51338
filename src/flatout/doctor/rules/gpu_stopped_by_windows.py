"""Windows has stopped the GPU because of problems (Code 43).

**Checks.** Device Manager's codes 43, 10, 31 and 12 for a GPU.

**Why it matters.** The card is present, but no program can use it, not even in WSL.

**Example.** `Windows has stopped this device because it has reported problems. (Code 43)`

**Fix.** Remove the driver with its settings and reinstall it; then check the card; by hand.

**Source.** https://support.microsoft.com/windows (error codes in Device Manager)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Device Manager reports it."""
    if not case.sees("device-manager-code"):
        return None
    is_gpu = bool(case.machine.gpus) or case.sees("nvidia-device-problem")
    return Finding(
        rule="gpu-stopped-by-windows",
        severity="error",
        certainty="decided" if is_gpu else "likely",
        problem="Windows has stopped the GPU because it reported problems.",
        evidence=case.evidence("device-manager-code", "nvidia-device-problem"),
        fixes=(
            Fix(
                text=(
                    'reinstall NVIDIA\'s driver with "clean installation"; if the code '
                    "persists, check power and seating of the card"
                ),
                where="powershell",
            ),
        ),
        confirm=("Get-PnpDevice -Class Display | Format-List FriendlyName, Status, Problem",),
    )


RULE = Rule(
    check=check,
    signatures=(
        signature(
            "device-manager-code",
            "Windows has stopped this device",
            "CM_PROB_FAILED_POST_START",
            "Code 43",
            "This device cannot start",
            "CM_PROB_FAILED_START",
            pattern=r"Windows has stopped this device|CM_PROB_FAILED_(?:POST_)?START|\(Code 43\)"
            r"|This device cannot start\. \(Code 10\)",
        ),
        signature(
            "nvidia-device-problem",
            "NVIDIA",
            "VEN_10DE",
            pattern=r"VEN_10DE|NVIDIA.{0,60}(?:Code 43|CM_PROB|Error\b)",
        ),
    ),
    explains=("gpu-fallen-off-bus",),
)
