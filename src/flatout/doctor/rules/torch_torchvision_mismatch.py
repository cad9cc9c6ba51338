"""torchvision was built for another torch version.

**Checks.** torchvision operators that are not registered, libraries that do not load, and pip's
messages about the pair. On the machine: the torch version that torchvision's metadata requires.

**Why it matters.** torchvision's operators are compiled against one torch version and one of its
CUDA builds: a CUDA torch with torchvision from the CPU index has no `nms` for the GPU.

**Example.** `RuntimeError: operator torchvision::nms does not exist`

**Fix.** Install both together from the same index; asks first.

**Source.** github.com/pytorch/vision, README, table of versions; ultralytics/yolov5#1272.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, unmet
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.doctor.torch_install import torch_install
from flatout.schema.finding import Finding
from flatout.schema.machine import Machine

_SIGNS = (
    "torchvision-broken",
    "torchvision-ops-unloaded",
    "torchvision-requires",
)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="torch-torchvision-mismatch",
        severity="error"
        if case.sees("torchvision-broken", "torchvision-ops-unloaded")
        else "warning",
        problem="torchvision was built for another torch version.",
        evidence=case.evidence(*_SIGNS),
        fixes=(torch_install(case.machine, "torchvision"),),
        confirm=("pip list | grep -i torch",),
    )


def _in_facts(machine: Machine) -> Facts:
    """torchvision's own requirement."""
    return unmet(machine, {"torch"}, {"torchvision"})


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="torchvision-requires", read=_in_facts),),
    signatures=(
        signature(
            "torchvision-broken",
            "torchvision",
            pattern=r"operator torchvision::\w+ does not exist|No such operator torchvision|"
            r"Couldn't load custom C\+\+ ops|Could not run 'torchvision::\w+'|"
            r"torchvision[^\n]{0,200}(?:undefined symbol|"
            r"procedure could not be found)|WinError 127\][^\n]{0,300}torchvision|"
            r"module 'torchvision' has no attribute 'extension'|"
            r"PyTorch and torchvision (?:were|was) compiled with different|"
            r"torchvision::nms",
        ),
        signature(
            "torchvision-ops-unloaded",
            "Couldn't load custom C++ ops",
            "install torchvision accordingly",
        ),
        signature(
            "torchvision-requires",
            "torchvision",
            pattern=r"torchvision \S{1,24} (?:requires|depends on|"
            r"has requirement) torch(?:==|>=)\S+.{0,80}(?:you have|incompatible)",
        ),
    ),
    explains=(
        "extension-abi-mismatch",
        "windows-missing-runtime-dll",
        "torch-cpu-only-build",
    ),
)
