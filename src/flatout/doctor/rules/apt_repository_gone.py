"""A package repository does not exist, or no longer exists, for this release.

**Checks.** apt's missing Release files and 404 responses.

**Why it matters.** Releases out of support move to old-releases or archive, and some repositories
never had one for this release.

**Example.** `E: The repository 'http://archive.ubuntu.com/ubuntu kinetic Release' does not have a
Release file.`

**Fix.** Use a supported release, or correct the name in the source list; by hand.

**Source.** help.ubuntu.com/community/EOLUpgrades; wiki.debian.org/DebianReleases.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """apt's missing Release files and 404 responses."""
    if not case.sees("apt-no-release"):
        return None
    return Finding(
        rule="apt-repository-gone",
        severity="error",
        certainty="likely",
        problem="A package repository does not exist, or no longer exists, for this release.",
        because="the release is out of support, or its name in the source list is wrong",
        evidence=case.evidence("apt-no-release"),
        fixes=(
            Fix(
                text="set the right release, or remove the source",
                where="linux",
                commands=("grep -rn '^deb' /etc/apt/sources.list /etc/apt/sources.list.d",),
                changes="nothing",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "apt-no-release",
            "does not have a Release file",
            "no longer has a Release file",
            "Failed to fetch",
            pattern=r"(?:does not have|no longer has) a Release file"
            r"|Failed to fetch \S{1,200}.{0,20}404 +Not Found",
        ),
    ),
)
