"""A build needs the CUDA toolkit, which is not installed.

**Checks.** Builds that cannot find nvcc or CUDA_HOME.

**Why it matters.** Wheels bring CUDA's libraries, not its compiler. Only compiling extensions needs
the toolkit.

**Example.** `OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA
install root.`

**Fix.** Use a prebuilt wheel; or install the toolkit (under WSL, never the driver) and set
CUDA_HOME; asks first.

**Source.** pytorch/pytorch: torch/utils/cpp_extension.py;
docs.nvidia.com/cuda/cuda-installation-guide-linux/; docs.nvidia.com/cuda/wsl-user-guide/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Builds that cannot find nvcc or CUDA_HOME."""
    if not case.sees("cuda-home-missing"):
        return None
    return Finding(
        rule="cuda-toolkit-missing-for-build",
        severity="error",
        problem="A build needs the CUDA toolkit, which is not installed.",
        because="wheels bring CUDA's libraries, not its compiler",
        evidence=case.evidence("cuda-home-missing"),
        fixes=(
            Fix(
                text="install the toolkit for torch's CUDA version, without a driver",
                safety="ask",
                commands=(
                    'python -c "import torch; print(torch.version.cuda)"',
                    "sudo apt install cuda-toolkit-<major>-<minor>",
                    "export CUDA_HOME=/usr/local/cuda",
                ),
                where="linux",
                changes="installs several GB",
                undo="sudo apt remove cuda-toolkit-<major>-<minor>",
            ),
        ),
        confirm=("nvcc --version", "echo $CUDA_HOME"),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "cuda-home-missing",
            "CUDA_HOME environment variable is not set",
            "CUDA_HOME does not exist",
            "nvcc: command not found",
            "nvcc: not found",
            "bin/nvcc",
            "nvcc was not found",
            "Could not find nvcc",
            "Failed to find nvcc",
            "CUDA_TOOLKIT_ROOT_DIR not found",
            "CMAKE_CUDA_COMPILER",
            "Unable to find nvcc",
            "'nvcc' is not recognized",
            "No CUDA toolset found",
            "nvcc",
            pattern=r"CUDA_HOME (?:environment variable is not set|does not exist)"
            r"|nvcc: (?:command )?not found|No such file or directory: '[^']{0,120}nvcc'"
            r"|bin/nvcc.{0,20}(?:not found|No such file)|(?:nvcc was not"
            r" found|(?:Could not"
            r"|Failed to|Unable to|Cannot) find nvcc)|CUDA_TOOLKIT_ROOT_DIR not"
            r" found|(?:No "
            r"|Failed to find )CMAKE_CUDA_COMPILER|'nvcc' is not recognized"
            r"|No CUDA toolset found",
        ),
    ),
    explains=("build-isolation-hides-torch",),
)
