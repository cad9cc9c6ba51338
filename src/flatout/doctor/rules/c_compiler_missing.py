"""No C or C++ compiler was found.

**Checks.** Triton, torch.compile, pip, CMake and nvcc cannot find gcc, g++ or cl.

**Why it matters.** Triton and torch.compile compile code at run time; packages without a wheel are
built during installation.

**Example.** `RuntimeError: Failed to find C compiler. Please specify via CC environment
variable.`

**Fix.** `sudo apt install build-essential`; on Windows, the Build Tools for Visual Studio and their
command prompt; asks first.

**Source.** triton-lang/triton: python/triton/runtime/build.py; pytorch/pytorch:
torch/_inductor/cpp_builder.py; wiki.python.org/moin/WindowsCompilers.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Triton, torch.compile, pip, CMake and nvcc cannot find gcc, g++ or cl."""
    if not case.sees("compiler-not-found"):
        return None
    return Finding(
        rule="c-compiler-missing",
        severity="error",
        problem="No C or C++ compiler was found.",
        because="Triton, torch.compile and packages without a wheel compile on this machine",
        evidence=case.evidence("compiler-not-found"),
        fixes=(
            Fix(
                text="install a compiler",
                safety="ask",
                commands=("sudo apt install build-essential",),
                where="linux",
                changes="installs gcc, g++ and make",
                undo="sudo apt remove build-essential",
            ),
            Fix(
                text=(
                    "on Windows: install Build Tools for Visual Studio with C++, then start"
                    " from its x64 prompt"
                ),
                where="powershell",
                # Without this workload, the Build Tools contain no compiler.
                commands=(
                    "winget install --exact --id Microsoft.VisualStudio.2022.BuildTools "
                    "--source winget --force --override '--wait --passive --norestart "
                    "--add Microsoft.VisualStudio.Workload.VCTools --includeRecommended'",
                ),
                changes="installs several GB",
            ),
        ),
        confirm=("gcc --version; g++ --version", "where.exe cl"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "compiler-not-found",
            "find C compiler",
            "working C++ compiler",
            "InvalidCxxCompiler",
            "unable to execute",
            "Microsoft Visual C++ 14",
            "Compiler: cl is not found",
            "Cannot find compiler",
            "CMAKE_C_COMPILER",
            "CMAKE_CXX_COMPILER",
            "gcc: command not found",
            "g++: command not found",
            "cc: command not found",
            "c++: command not found",
            "gcc: not found",
            "cc: not found",
            "g++: not found",
            "gcc",
            "g++",
            "c++",
            "Error checking compiler version",
            "linker `cc` not found",
            "linker `link.exe` not found",
            "error: command 'cl.exe' failed",
            "Unknown compiler",
            "vcvarsall.bat",
            "command 'cl",
            "clang",
            "No C compiler found",
            pattern=r"Failed to find C compiler|No working C\+\+ compiler|InvalidCxxCompiler"
            r"|unable to execute '?(?:[\w-]{1,30}-)?(?:gcc|g\+\+|cc|c\+\+|clang|cl)"
            r"|Microsoft Visual C\+\+ 14(?:\.\d)? (?:or greater )?is required"
            r"|Compiler: cl is not found|Cannot find compiler '?cl|(?:No"
            r" )?CMAKE_(?:C|CXX"
            r"|CUDA_HOST)_COMPILER (?:could be found|not set|.{0,40}not found)"
            r"|(?:CMAKE_C(?:XX)?_COMPILER) not set|\b(?:gcc|g\+\+|cc|c\+\+"
            r"|clang)(?:-\d+)?: (?:command )?not found|command"
            r" '?(?:[\w/-]{1,40}-)?(?:gcc|g\+\+"
            r"|cc|c\+\+|clang|cl(?:\.exe)?)(?:-\d+)?'? failed: (?:No such file|None)"
            r"|No such file or directory: '(?:/usr/bin/)?(?:gcc|g\+\+|c\+\+|cc|clang\+*"
            r"|cl(?:\.exe)?)'|Error checking compiler version for (?:cl|c\+\+|g\+\+|gcc)"
            r"|linker .(?:cc|link\.exe). not found|Unable to find vcvarsall"
            r"|Unknown compiler\(s\)|No C compiler found",
        ),
    ),
)
