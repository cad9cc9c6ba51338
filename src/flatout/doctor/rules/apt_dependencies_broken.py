"""apt cannot install this: packages require conflicting versions.

**Checks.** Unmet dependencies and held packages.

**Why it matters.** Drivers from NVIDIA's repository, from Ubuntu and from a `.run` file conflict
with each other; so do packages for another release.

**Example.** `The following packages have unmet dependencies: nvidia-driver-535 : Depends:
nvidia-dkms-535 but it is not going to be installed`

**Fix.** One source for the driver; `apt-cache policy` shows which repository offers what; by hand.

**Source.** help.ubuntu.com/community/PinningHowto;
docs.nvidia.com/cuda/cuda-installation-guide-linux/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Unmet dependencies and held packages."""
    if not case.sees("apt-unmet"):
        return None
    return Finding(
        rule="apt-dependencies-broken",
        severity="error",
        certainty="likely",
        problem="apt cannot install this: packages require conflicting versions.",
        because="two repositories offer the same packages, or one is for another release",
        evidence=case.evidence("apt-unmet"),
        fixes=(
            Fix(
                text="check which repository offers which version, and keep one",
                safety="safe",
                commands=("apt-cache policy <package>", "apt-mark showhold"),
                where="linux",
                changes="nothing",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=45,
    signatures=(
        signature(
            "apt-unmet",
            "have unmet dependencies",
            "held broken packages",
            "but it is not going to be installed",
            "is not installable",
            "pkgProblemResolver",
            pattern=r"have unmet dependencies|held broken packages"
            r"|but it is not going to be installed|but it is not"
            r" installable|pkgProblemResolver",
        ),
    ),
)
