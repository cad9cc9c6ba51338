"""CUDA no longer starts, usually after a suspend.

**Checks.** CUDA's unknown error (999, formerly 30) at initialization, and traces of a suspend.

**Why it matters.** After a resume, the nvidia_uvm module may hold stale state. nvidia-smi works,
but every CUDA program fails until the module is reloaded.

**Example.** `CUDA unknown error - this may be due to an incorrectly set up environment`

**Fix.** Reload nvidia_uvm, or restart; asks first. Under WSL: `wsl --shutdown`.

**Source.** pytorch/pytorch#88639, #49081;
download.nvidia.com/XFree86/Linux-x86_64/450.66/README/powermanagement.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """CUDA's unknown error at initialization."""
    if not case.sees("cuda-unknown-error"):
        return None
    has_slept = case.sees("machine-slept")
    commands = ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm")
    return Finding(
        rule="cuda-broken-after-suspend",
        severity="error",
        certainty="decided" if has_slept else "likely",
        problem="CUDA does not start: its kernel module lost the device"
        + (" while the machine slept." if has_slept else "; this usually follows a suspend."),
        because="nvidia_uvm causes CUDA's unknown error at initialization, usually after a resume",
        evidence=case.evidence("cuda-unknown-error", "machine-slept"),
        fixes=(
            Fix(
                text="restart WSL" if case.is_wsl else (
                        "stop the programs that use the GPU, and reload nvidia_uvm; or restart"
                    ),
                safety="ask",
                commands=("wsl --shutdown",) if case.is_wsl else commands,
                where="powershell" if case.is_wsl else "host",
                changes="stops the programs that use the GPU",
            ),
        ),
        confirm=("journalctl -k | grep -iE 'suspend|resume'", "nvidia-smi", "ls -l /dev/nvidia*"),
    )  # fmt: skip


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "machine-slept",
            "suspend", "resume", "sleep", "hibernate", "hibernation", "resumed", "woke", "wakeup",
            pattern=r"PM: suspend|systemd-(?:suspend|sleep)|nvidia-(?:suspend|resume)|systemctl"
            r" (?:suspend|hibernate)|(?:after|from|entering) (?:system )?(?:sleep|suspend|hibernat)"
            r"|(?:resum|wak|woke)\w* (?:up )?(?:from|after) |PreserveVideoMemory",
        ),
    ),
)  # fmt: skip
