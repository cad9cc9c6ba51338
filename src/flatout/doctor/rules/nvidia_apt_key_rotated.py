"""NVIDIA's package repository is signed with a key that this machine does not have.

**Checks.** apt's and dnf's complaints of keys, by repository and by key. On the machine: NVIDIA's
repository as a source without a key of its own and without cuda-keyring.

**Why it matters.** NVIDIA replaced the key of its CUDA repositories in April 2022 (7FA2AF80
became 3BF863CC). Machines and images from before refuse them until the new key is there.

**Example.** `GPG error: https://developer.download.nvidia.com/compute/cuda/repos/... NO_PUBKEY
A4B469963BF863CC`

**Fix.** Install `cuda-keyring` and remove the old key; asked first. In a Dockerfile before the
first `apt-get update`; or an image that was made later.

**Source.** developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key;
NVIDIA/cuda-repo-management#4.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """A key of NVIDIA's is missing, or its repository is not accepted as signed."""
    if not case.sees("nvidia-key-missing"):
        return None
    return Finding(
        rule="nvidia-apt-key-rotated",
        severity="error",
        problem="NVIDIA's package repository is signed with a key that this machine does not have.",
        because="NVIDIA signs with a new key since April 2022, and the old one is what this "
        "machine knows",
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
                changes="the keys that apt accepts",
                undo="sudo apt-get remove cuda-keyring",
            ),
            Fix(
                text="where no CUDA package is wanted (under WSL, in images that bring "
                "CUDA): take the source out",
                safety="ask",
                commands=(
                    "ls /etc/apt/sources.list.d | grep -iE 'cuda|nvidia'",
                    "sudo rm /etc/apt/sources.list.d/cuda.list",
                ),
                where="linux",
                changes="the sources of apt",
            ),
        ),
        confirm=(
            "apt-key list 2>/dev/null | grep -iA2 -B2 nvidia",
            "grep -rl nvidia /etc/apt/sources.list.d",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """NVIDIA's repository is a source, and nothing brought its present key."""
    packages = machine.packages
    if packages is None or not packages.has_nvidia_source or packages.is_nvidia_source_signed:
        return ()
    return fact("NVIDIA's repository without a key of its own", "/etc/apt/sources.list.d")


RULE = Rule(
    check=check,
    prior=70,
    readings=(
        Reading(sign="nvidia-key-missing", read=_in_facts, severity="warning", certainty="likely"),
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
