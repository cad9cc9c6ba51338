"""The kernel has no address space left for NVIDIA's unified memory module.

**Checks.** The kernel's `request_free_mem_region() err -34` from nvidia_uvm.

**Why it matters.** The driver's heterogeneous memory management (HMM) needs addresses that a kernel
with address randomization may already use. CUDA then fails to start.

**Example.** `nvidia-uvm: request_free_mem_region() err -34`

**Fix.** Disable HMM for the module, or boot the kernel with `nokaslr`; by hand.

**Source.** https://docs.nvidia.com/cuda/cuda-toolkit-release-notes (known issues: HMM and KASLR)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The module reports it."""
    if not case.sees("uvm-no-region"):
        return None
    return Finding(
        rule="uvm-hmm-kernel-conflict",
        severity="error",
        problem="The kernel has no address space left for NVIDIA's unified memory module.",
        evidence=case.evidence("uvm-no-region", "cuda-unknown-error"),
        fixes=(
            Fix(
                text="disable HMM for the module, and restart",
                commands=(
                    "echo 'options nvidia_uvm uvm_disable_hmm=1' "
                    "| sudo tee /etc/modprobe.d/nvidia-uvm-hmm.conf",
                    "sudo reboot",
                ),
                where="host",
                changes="adds a file in /etc/modprobe.d; restarts the machine",
                undo="sudo rm /etc/modprobe.d/nvidia-uvm-hmm.conf",
            ),
        ),
        confirm=("sudo dmesg | grep -i request_free_mem_region",),
    )


RULE = Rule(
    check=check,
    prior=75,
    signatures=(
        signature(
            "uvm-no-region",
            "request_free_mem_region",
            pattern=r"request_free_mem_region\(\).{0,20}err(?:or)? ?=? ?-34",
        ),
    ),
    explains=("cuda-broken-after-suspend",),
)
