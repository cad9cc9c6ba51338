"""Calls through WSL's GPU bridge fail in the kernel.

**Checks.** `dxgk ... Ioctl failed` lines of the kernel, and whether anything else fails.

**Why it matters.** Usually it does not: working machines print these lines when a program requests
a feature that this Windows lacks. Only with a program that finds no GPU are they a clue.

**Example.** `misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22`

**Fix.** None is known for the lines alone. If the GPU fails too: `wsl --update` and a newer driver.

**Source.** microsoft/WSL#40715 (harmless), #13734 (with a failure).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_FAILURES = (
    "nvml-blocked",
    "cuda-no-device",
    "cuda-unknown-error",
    "smi-no-devices",
    "software-gl",
)


def check(case: Case) -> Finding | None:
    """The kernel's lines; a warning only with a failure."""
    if not case.sees("dxg-ioctl-failed"):
        return None
    is_harmful = case.sees(*_FAILURES)
    return Finding(
        rule="wsl-dxg-bridge-failing",
        severity="warning" if is_harmful else "note",
        certainty="possible",
        problem="Calls through WSL's GPU bridge (dxgkrnl) fail.",
        because="healthy machines print these lines too; they matter only if a program fails",
        evidence=case.evidence("dxg-ioctl-failed", *_FAILURES),
        fixes=(
            Fix(
                text="if a program fails: update WSL and Windows' NVIDIA driver",
                commands=("wsl --update", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro and container",
            ),
        ),
        confirm=("nvidia-smi",),
    )


RULE = Rule(
    check=check,
    prior=20,
    signatures=(
        signature(
            "dxg-ioctl-failed",
            "Ioctl failed",
            "dxgvmb_send",
            "dxgkio",
            pattern=r"dxg\w*:.{0,80}(?:failed|-\d+$)|dxgkio\w+: Ioctl failed",
        ),
        signature("software-gl", "llvmpipe"),
    ),
)
