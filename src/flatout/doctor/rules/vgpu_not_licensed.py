"""A virtual GPU runs without a license and is throttled.

**Checks.** License messages of the guest's driver and `nvidia-smi -q`.

**Why it matters.** Without a license, a vGPU works at first, but after some minutes runs at a
fraction of its speed, and CUDA is disabled.

**Example.** `vGPU License Status : Unlicensed (Unrestricted)`

**Fix.** Give the guest its client configuration token and restart nvidia-gridd; by hand.

**Source.** https://docs.nvidia.com/vgpu (Virtual GPU Client Licensing User Guide)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The license is reported as missing."""
    if not case.sees("vgpu-unlicensed"):
        return None
    return Finding(
        rule="vgpu-not-licensed",
        severity="error",
        problem="The virtual GPU has no license and is throttled.",
        evidence=case.evidence("vgpu-unlicensed"),
        fixes=(
            Fix(
                text=(
                    "put the client configuration token into /etc/nvidia/ClientConfigToken,"
                    " and restart the license client"
                ),
                commands=("sudo systemctl restart nvidia-gridd",),
                where="linux",
            ),
        ),
        confirm=("nvidia-smi -q | grep -i -A2 license",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "vgpu-unlicensed",
            "License Status",
            "nvidia-gridd",
            "vGPU",
            pattern=r"License Status\s*: Unlicensed|nvidia-gridd.{0,60}(?:Failed to acquire license"
            r"|Unlicensed)|(?:vGPU|GRID).{0,60}(?:unlicensed|not licensed|valid license)",
        ),
    ),
)
