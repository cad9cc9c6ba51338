"""nvcc does not accept this version of gcc or Visual Studio.

**Checks.** nvcc's refusal of the compiler that works for it.

**Why it matters.** Each toolkit accepts compilers up to the version of its day.

**Example.** `#error -- unsupported GNU version! gcc versions later than 12 are not supported!`

**Fix.** An older compiler beside the new one: `NVCC_PREPEND_FLAGS='-ccbin /usr/bin/g++-12'`;
asked first. On Windows an older toolset of Visual Studio 2022: CUDA before 12.4 accepts up to
14.39, and CUDA before 11.6 Visual Studio 2019. Or a newer toolkit. `flatout setup --toolkit` plans
a compiler that fits, and compiles a kernel.

**Source.** docs.nvidia.com/cuda/cuda-installation-guide-linux/ (host compiler support policy);
rapidsai/devcontainers#488; pytorch/vision#8492; ggml-org/llama.cpp#8628.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_TOOLSET = Fix(
    text="add the toolset 14.38 to the build tools of Visual Studio 2022, which every CUDA from "
    "11.6 on accepts, and compile where it is asked for",
    safety="ask",
    commands=(
        "winget install --exact --id Microsoft.VisualStudio.2022.BuildTools --source winget "
        "--force --override '--wait --passive --norestart "
        "--add Microsoft.VisualStudio.Workload.VCTools --includeRecommended "
        "--add Microsoft.VisualStudio.Component.VC.14.38.17.8.x86.x64'",
        "cmd /k '\"C:\\Program Files (x86)\\Microsoft Visual Studio\\2022\\BuildTools\\VC"
        "\\Auxiliary\\Build\\vcvarsall.bat\" x64 -vcvars_ver=14.38'",
    ),
    where="powershell",
    changes="installs an older compiler beside the new one, some 7 GB",
)
_TOOLKIT = Fix(
    text="or let flatout plan a toolkit with a compiler that fits",
    commands=("flatout setup --toolkit --dry-run",),
)


def check(case: Case) -> Finding | None:
    """nvcc's refusal of the compiler that works for it."""
    if not case.sees("host-compiler-refused", "visual-studio-refused"):
        return None
    is_windows = case.sees("visual-studio-refused")
    return Finding(
        rule="host-compiler-too-new-for-nvcc",
        severity="error",
        problem="nvcc does not accept this version of gcc or Visual Studio.",
        because="the toolkit is older than the compiler",
        evidence=case.evidence("host-compiler-refused", "visual-studio-refused"),
        fixes=(_TOOLSET, _TOOLKIT) if is_windows else (
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
            _TOOLKIT,
        ),
    )  # fmt: skip


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "host-compiler-refused",
            "unsupported GNU version",
            "unsupported clang version",
            "current installed version of g++",
            pattern=r"unsupported (?:GNU|clang) version"
            r"|installed version of g\+\+ .{0,40}is (?:greater|less) than",
        ),
        signature(
            "visual-studio-refused",
            "unsupported Microsoft Visual Studio version",
            "STL1002: Unexpected compiler version, expected CUDA",
        ),
    ),
)
