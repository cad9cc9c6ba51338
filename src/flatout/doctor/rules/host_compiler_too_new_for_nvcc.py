"""nvcc does not accept this version of gcc or Visual Studio.

**Checks.** nvcc's refusal of the compiler that works for it.

**Why it matters.** Each toolkit accepts compilers up to the version of its day.

**Example.** `#error -- unsupported GNU version! gcc versions later than 12 are not supported!`

**Fix.** An older compiler beside the new one: `NVCC_PREPEND_FLAGS='-ccbin /usr/bin/g++-12'`;
asked first. Or a newer toolkit.

**Source.** docs.nvidia.com/cuda/cuda-installation-guide-linux/ (host compiler support policy).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """nvcc's refusal of the compiler that works for it."""
    if not case.sees("host-compiler-refused"):
        return None
    return Finding(
        rule="host-compiler-too-new-for-nvcc",
        severity="error",
        problem="nvcc does not accept this version of gcc or Visual Studio.",
        because="the toolkit is older than the compiler",
        evidence=case.evidence("host-compiler-refused"),
        fixes=(
            Fix(
                text="give nvcc an older compiler",
                safety="ask",
                commands=(
                    "sudo apt install g++-12",
                    "export NVCC_PREPEND_FLAGS='-ccbin /usr/bin/g++-12'",
                ),
                where="linux",
                changes="installs a compiler",
                undo="unset NVCC_PREPEND_FLAGS",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "host-compiler-refused",
            "unsupported GNU version",
            "unsupported clang version",
            "unsupported Microsoft Visual Studio version",
            "current installed version of g++",
            pattern=r"unsupported (?:GNU|clang|Microsoft Visual Studio) version"
            r"|installed version of g\+\+ .{0,40}is (?:greater|less) than",
        ),
    ),
)
