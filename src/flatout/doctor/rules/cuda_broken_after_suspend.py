"""CUDA does not start any more, mostly after a suspend.

**Checks.** CUDA's unknown error (999, before that 30) at its start, and traces of a suspend.

**Why it matters.** After a resume the module nvidia_uvm may hold what is no longer there.
nvidia-smi works, and every CUDA program fails, until the module is loaded anew.

**Example.** `CUDA unknown error - this may be due to an incorrectly set up environment`

**Fix.** Reload nvidia_uvm, or restart; asked first. Under WSL: `wsl --shutdown`.

**Source.** pytorch/pytorch#88639, #49081;
download.nvidia.com/XFree86/Linux-x86_64/450.66/README/powermanagement.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """CUDA's unknown error at start."""
    if not case.sees("cuda-unknown-error"):
        return None
    is_told = case.sees("machine-slept")
    commands = ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm")
    return Finding(
        rule="cuda-broken-after-suspend",
        severity="error",
        certainty="decided" if is_told else "likely",
        problem="CUDA does not start: its module lost the device"
        + (" while the machine slept." if is_told else ", as it does over a suspend."),
        because="CUDA's unknown error at start comes of nvidia_uvm, mostly after a resume",
        evidence=case.evidence("cuda-unknown-error", "machine-slept"),
        fixes=(
            Fix(
                text="restart WSL" if case.is_wsl else "end what uses the GPU, and load nvidia_uvm "
                "anew; or restart",
                safety="ask",
                commands=("wsl --shutdown",) if case.is_wsl else commands,
                where="powershell" if case.is_wsl else "host",
                changes="ends what uses the GPU",
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
