"""A build wants cmake, ninja, git or Rust, which are not there.

**Checks.** Builds that do not find their tools.

**Why it matters.** Packages without a wheel for this machine are built when they are installed,
with tools that pip does not bring.

**Example.** `error: can't find Rust compiler`

**Fix.** Install the tool, or take a version with a wheel; asked first.

**Source.** pip.pypa.io/en/stable/topics/vcs-support/; setuptools-rust.readthedocs.io;
cmake.org/download.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Builds that do not find their tools."""
    if not case.sees("build-tool-missing"):
        return None
    return Finding(
        rule="build-tools-missing",
        severity="error",
        certainty="likely",
        problem="A build wants cmake, ninja, git or Rust, which are not there.",
        because="the package has no wheel for this machine, and is built",
        evidence=case.evidence("build-tool-missing"),
        fixes=(
            Fix(
                text="install what is named",
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
