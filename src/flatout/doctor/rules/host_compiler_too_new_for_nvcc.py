"""nvcc does not support this version of gcc or Visual Studio.

**Checks.** nvcc's error about an unsupported host compiler.

**Why it matters.** Each toolkit supports host compilers up to those current at its release.

**Example.** `#error -- unsupported GNU version! gcc versions later than 12 are not supported!`

**Fix.** Install an older compiler alongside the new one: `NVCC_PREPEND_FLAGS='-ccbin
/usr/bin/g++-12'`; asks first. On Windows, install an older toolset of Visual Studio 2022: CUDA
before 12.4 supports up to 14.39, and CUDA before 11.6 only Visual Studio 2019. Or install a newer
toolkit. `flatout setup --toolkit` plans a matching compiler and compiles a test kernel.

**Source.** docs.nvidia.com/cuda/cuda-installation-guide-linux/ (host compiler support policy);
rapidsai/devcontainers#488; pytorch/vision#8492; ggml-org/llama.cpp#8628.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_TOOLSET = Fix(
    text=(
        "add toolset 14.38 to the Visual Studio 2022 build tools, which every CUDA since "
        "11.6 supports, and select it when compiling"
    ),
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
    changes="installs an older compiler alongside the new one, about 7 GB",
)
_TOOLKIT = Fix(
    text="or let flatout plan a toolkit with a matching compiler",
    commands=("flatout setup --toolkit --dry-run",),
)


def check(case: Case) -> Finding | None:
    """nvcc's error about an unsupported host compiler."""
    if not case.sees("host-compiler-refused", "visual-studio-refused"):
        return None
    is_windows = case.sees("visual-studio-refused")
    return Finding(
        rule="host-compiler-too-new-for-nvcc",
        severity="error",
        problem="nvcc does not support this version of gcc or Visual Studio.",
        because="the compiler is newer than the toolkit",
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
