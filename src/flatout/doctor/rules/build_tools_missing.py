"""A build needs cmake, ninja, git or Rust, which is not installed.

**Checks.** Builds that cannot find their tools.

**Why it matters.** Packages without a wheel for this machine are built during installation, with
tools that pip does not provide.

**Example.** `error: can't find Rust compiler`

**Fix.** Install the tool, or choose a version that has a wheel; asks first.

**Source.** pip.pypa.io/en/stable/topics/vcs-support/; setuptools-rust.readthedocs.io;
cmake.org/download.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Builds that cannot find their tools."""
    if not case.sees("build-tool-missing"):
        return None
    return Finding(
        rule="build-tools-missing",
        severity="error",
        certainty="likely",
        problem="A build needs cmake, ninja, git or Rust, which is not installed.",
        because="the package has no wheel for this machine, so it is built from source",
        evidence=case.evidence("build-tool-missing"),
        fixes=(
            Fix(
                text="install the missing tool",
                safety="ask",
                commands=("pip install cmake ninja", "sudo apt install git cargo"),
                where="linux",
                changes="installs tools",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "build-tool-missing",
            "can't find Rust compiler",
            "Rust toolchain",
            "Ninja is required",
            "CMake must be installed",
            "Cannot find command 'git'",
            "git: command not found",
            "cmake: command not found",
            "No such file or directory: 'cmake'",
            "No such file or directory: 'git'",
            "No such file or directory: 'ninja'",
            "cargo",
            "Unable to find Ninja",
            pattern=r"find Rust compiler|Rust toolchain.{0,40}not (?:installed|found)"
            r"|Cargo.{0,60}is not (?:installed|found)|Ninja is required|Unable to"
            r" find Ninja"
            r"|CMake must be installed|Cannot find command 'git'|(?:git|cmake|cargo"
            r"|ninja): (?:command )?not found|No such file or directory:"
            r" '(?:cmake|git|ninja"
            r"|cargo)'",
        ),
    ),
)
