"""The installed torch is a CPU-only build.

**Checks.** torch's own error, and versions that end in `+cpu`, or `cpuonly` in a conda list, when a
GPU is requested. On the machine: a CPU build, although there is a GPU.

**Why it matters.** On Windows, `pip install torch` installs a build without CUDA; so does conda if
it finds no driver while solving.

**Example.** `AssertionError: Torch not compiled with CUDA enabled`

**Fix.** Install a CUDA build from torch's own index; asks first.

**Source.** pytorch/pytorch:torch/cuda/__init__.py; pytorch.org/get-started;
pytorch/pytorch#28111.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.doctor.torch_install import torch_install
from flatout.schema.finding import Finding
from flatout.schema.machine import Machine

_SIGNS = (
    "torch-without-cuda",
    "torch-cpu-version",
)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="torch-cpu-only-build",
        severity="error" if case.sees("torch-without-cuda") else "warning",
        problem="The installed torch is a CPU-only build.",
        because="a build without CUDA cannot use a GPU",
        evidence=case.evidence(*_SIGNS),
        fixes=(torch_install(case.machine),),
        confirm=(('python -c "import torch; print(torch.__version__, torch.version.cuda)"'),),
    )


def _in_facts(machine: Machine) -> Facts:
    """torch is a CPU build, although there is a GPU."""
    torch = machine.framework("torch")
    if torch is None or torch.build != "cpu" or not machine.gpus:
        return ()
    return (
        *fact(f"torch {torch.version} is built for the CPU", "metadata"),
        *fact(machine.gpus[0].name or "a GPU", "NVML"),
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="torch-cpu-version", read=_in_facts),),
    signatures=(
        signature(
            "torch-without-cuda",
            "not compiled with CUDA",
            "from the 'CUDA' backend",
            "not linked with support for cuda",
            "not compiled with CUDA support",
            "Torch was not compiled with",
            pattern=r"(?<!paddle )(?<!is )not compiled with CUDA (?:enabled|support)|"
            r"Could not run 'aten::\S{1,60}' with arguments from the 'CUDA' backend|"
            r"not linked with support for cuda|Torch was not compiled with CUDA",
        ),
        signature(
            "torch-cpu-version",
            "+cpu",
            "cpuonly",
            "pytorch-mutex",
            "CUDA used to build PyTorch",
            pattern=r"torch\w{0,8}[^\n]{0,30}?\b\d+\.\d+\.\d+[\w.]{0,24}\+cpu\b(?<!vision)|"
            r"^\W{0,2}\d\.\d+\.\d+[\w.]{0,24}\+cpu\W{0,2}$|"
            r"pytorch-mutex\s+1\.0\s+cpu|^cpuonly\s+\d|"
            r"^\W{0,4}(?:py)?torch\s+\d[\w.]+\s+\S{0,16}cpu|"
            r"CUDA used to build PyTorch: None",
        ),
    ),
    explains=("checkpoint-saved-on-gpu",),
)
