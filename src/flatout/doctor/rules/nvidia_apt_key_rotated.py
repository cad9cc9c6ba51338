"""This machine lacks the key that signs NVIDIA's package repository.

**Checks.** apt's and dnf's key errors, by repository and by key. On the machine: NVIDIA's
repository listed as a source without its own key and without cuda-keyring.

**Why it matters.** NVIDIA replaced the key of its CUDA repositories in April 2022 (7FA2AF80 became
3BF863CC). Older machines and images reject them until the new key is installed.

**Example.** `GPG error: https://developer.download.nvidia.com/compute/cuda/repos/... NO_PUBKEY
A4B469963BF863CC`

**Fix.** Install `cuda-keyring` and remove the old key; asks first. In a Dockerfile, do it before
the first `apt-get update`, or use a newer base image.

**Source.** developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key;
NVIDIA/cuda-repo-management#4.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """An NVIDIA key is missing, or its repository's signature is rejected."""
    if not case.sees("nvidia-key-missing"):
        return None
    return Finding(
        rule="nvidia-apt-key-rotated",
        severity="error",
        problem="This machine lacks the key that signs NVIDIA's package repository.",
        because=(
            "NVIDIA has signed with a new key since April 2022; this machine has only the old one"
        ),
        evidence=case.evidence("nvidia-key-missing"),
        fixes=(
            Fix(
                text="install the new key, and remove the old one",
                safety="ask",
                commands=(
                    "sudo apt-key del 7fa2af80",
                    "wget https://developer.download.nvidia.com/compute/cuda/repos/<distro>/x86_64/cuda-keyring_1.1-1_all.deb",
                    "sudo dpkg -i cuda-keyring_1.1-1_all.deb",
                    "sudo apt-get update",
                ),
                where="linux",
                changes="the keys that apt trusts",
                undo="sudo apt-get remove cuda-keyring",
            ),
            Fix(
                text=(
                    "or, if no CUDA packages are needed (under WSL, or in images that "
                    "include CUDA), remove the source"
                ),
                safety="ask",
                commands=(
                    "ls /etc/apt/sources.list.d | grep -iE 'cuda|nvidia'",
                    "sudo rm /etc/apt/sources.list.d/cuda.list",
                ),
                where="linux",
                changes="apt's sources",
            ),
        ),
        confirm=(
            "apt-key list 2>/dev/null | grep -iA2 -B2 nvidia",
            "grep -rl nvidia /etc/apt/sources.list.d",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """NVIDIA's repository is a source, but its current key is not installed."""
    packages = machine.packages
    if packages is None or not packages.has_nvidia_source or packages.is_nvidia_source_signed:
        return ()
    return fact("NVIDIA's repository without its own key", "/etc/apt/sources.list.d")


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(
        FactCheck(
            sign="nvidia-key-missing", read=_in_facts, severity="warning", certainty="likely"
        ),
    ),
    signatures=(
        signature(
            "nvidia-key-missing",
            "NO_PUBKEY",
            "EXPKEYSIG",
            "BADSIG",
            "REVKEYSIG",
            "KEYEXPIRED",
            "is not signed",
            "public key is not available",
            "Missing key",
            "GPG check FAILED",
            "is not installed",
            "key is not available",
            "couldn't be verified",
            "signatures were invalid",
            "Signature verification failed",
            "repomd.xml signature could not be verified",
            pattern=r"(?:NO_PUBKEY|EXPKEYSIG|BADSIG|REVKEYSIG) (?:A4B469963BF863CC"
            r"|F60F4B3D7FA2AF80|DDCAE044F796ECB0|6ED91CA3AC1160CD)"
            r"|Missing key [0-9A-F]{24}(?:A4B469963BF863CC|DDCAE044F796ECB0)|nvidia"
            r"\.(?:com"
            r"|github\.io)/.{0,200}(?:NO_PUBKEY|EXPKEYSIG|BADSIG|REVKEYSIG|KEYEXPIRED"
            r"|is not signed|public key is not available|signature (?:could not be"
            r" verified"
            r"|verification failed)|signatures were invalid)|Public key for"
            r" (?:cuda|nvidia"
            r"|libnvidia|nvidia-container)\S{0,80} is not installed|(?:cuda"
            r"|nvidia)\S{0,60}.{0,80}GPG check FAILED"
            r"|signature.{0,80}nvidia.{0,80}(?:could not be verified|failed)",
        ),
    ),
    explains=("apt-repository-gone",),
)
