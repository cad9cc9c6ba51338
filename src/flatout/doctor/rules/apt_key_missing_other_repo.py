"""The signing key of a package repository unrelated to the GPU is missing.

**Checks.** apt's key errors, other than for NVIDIA's keys.

**Why it matters.** apt continues without that repository. Its message often appears next to another
error and is mistaken for the cause.

**Example.** `GPG error: http://packages.ros.org/ros/ubuntu bionic InRelease: EXPKEYSIG
F42ED6FBAB17C654`

**Fix.** Install the new key as the repository's page describes, or remove its source; asks first.

**Source.** wiki.debian.org/DebianRepository/UseThirdParty; manpages.debian.org/apt-secure.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Evidence, Finding, Fix

_NVIDIA = ("A4B469963BF863CC", "F60F4B3D7FA2AF80", "DDCAE044F796ECB0", "6ED91CA3AC1160CD")


def check(case: Case) -> Finding | None:
    """A missing key that belongs neither to NVIDIA nor to its repository."""
    others = [
        sign
        for sign in case.signs["apt-key-missing"]
        if "nvidia" not in sign.text.lower()
        and sign.values.get("key", "").upper() not in _NVIDIA
        and sign.values.get("name", "") not in _NVIDIA
    ]
    if not others:
        return None
    is_refused = any("is not signed" in sign.text or sign.text.startswith("E:") for sign in others)
    evidence = tuple(Evidence(text=one.text, where=f"line {one.line}") for one in others[:2])
    return Finding(
        rule="apt-key-missing-other-repo",
        severity="error" if is_refused else "warning",
        certainty="likely",
        problem="The signing key of a package repository unrelated to the GPU is missing.",
        because="the key was never installed, or has expired",
        evidence=evidence,
        fixes=(
            Fix(
                text="install the key as the repository's page describes, or remove its source",
                safety="manual",
                commands=("grep -rn '^deb' /etc/apt/sources.list /etc/apt/sources.list.d",),
                where="linux",
                changes="nothing",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "apt-key-missing",
            "NO_PUBKEY",
            "EXPKEYSIG",
            "BADSIG",
            "REVKEYSIG",
            "KEYEXPIRED",
            "is not signed",
            "Missing key",
            pattern=r"(?:NO_PUBKEY|EXPKEYSIG|BADSIG|REVKEYSIG) (?P<key>[0-9A-Fa-f]{16})"
            r"|KEYEXPIRED \d+|The repository '[^']{1,200}' is (?:not|no longer) signed"
            r"|Missing key [0-9A-F]{24}(?P<name>[0-9A-F]{16})",
        ),
    ),
)
