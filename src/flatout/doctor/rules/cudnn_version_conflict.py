"""A different cuDNN is loaded than the one bundled with the framework.

**Checks.** Messages of torch, TensorFlow, JAX and Paddle about the cuDNN they were compiled with
and the one they found, and parts of cuDNN in different versions. On the machine: a cuDNN on
LD_LIBRARY_PATH in addition to the wheels' own.

**Why it matters.** Wheels bring their own cuDNN. One on `LD_LIBRARY_PATH`, or in an image, is found
first.

**Example.** `cuDNN version incompatibility: PyTorch was compiled against (8, 3, 2) but linked
against (8, 0, 3)`

**Fix.** Remove the folder from LD_LIBRARY_PATH in this shell; safe.

**Source.** pytorch/pytorch:torch/backends/cudnn/__init__.py; pytorch/pytorch#80637;
docs.nvidia.com/deeplearning/cudnn.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("cudnn-conflict",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="cudnn-version-conflict",
        severity="error",
        problem="A different cuDNN is loaded than the one bundled with the framework.",
        because="the loader finds the other one first",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="remove the folder with the other cuDNN from the loader's path",
                safety="safe",
                commands=("unset LD_LIBRARY_PATH",),
                where="here",
                changes="only this shell",
                undo="close the shell",
            ),
        ),
        confirm=(
            "echo $LD_LIBRARY_PATH",
            "ldconfig -p | grep cudnn",
            "pip list | grep -i cudnn",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """LD_LIBRARY_PATH holds a cuDNN that the loader prefers to the wheel's."""
    found = {
        one.found_by: one for one in reversed(machine.libraries or ()) if one.name == "libcudnn"
    }
    listed, wheel = found.get("LD_LIBRARY_PATH"), found.get("wheel")
    if listed is None or wheel is None or listed.version == wheel.version:
        return ()
    return (
        *fact(f"cuDNN {listed.version} at {listed.path}", "LD_LIBRARY_PATH"),
        *fact(f"cuDNN {wheel.version} of the environment", "site-packages"),
    )


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="cudnn-conflict", read=_in_facts),),
    signatures=(
        signature(
            "cudnn-conflict",
            "cuDNN version incompatibility",
            "CuDNN library",
            "cudnn library",
            "SUBLIBRARY_VERSION_MISMATCH",
            "CUDNN_STATUS_VERSION_MISMATCH",
            "is compiled with CUDNN",
            "version libcudnn",
            "undefined symbol: cudnn",
            "CuDNN runtime",
            "Outdated cuDNN installation",
            "Found cuDNN version",
            "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED",
            pattern=r"cuDNN version incompatibility|"
            r"Loaded (?:runtime )?CuDNN library:? \S{1,20}[^\n]{0,20} but source"
            r" was compiled with|(?:SUBLIBRARY_VERSION|"
            r"CUDNN_STATUS_VERSION)_MISMATCH|"
            # Paddle compares more digits than it prints, so two equal numbers are not a conflict.
            r"is compiled with CUDNN ([\d.]{1,12}),? but CUDNN version in your machine is (?!\1,)|"
            r"(?:undefined symbol|symbol)[^\n]{0,100}version libcudnn|"
            r"undefined symbol: cudnn|Outdated cuDNN installation|"
            r"Found cuDNN version \d+, but|CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED",
        ),
    ),
    explains=(
        "cudnn-library-missing",
        "extension-abi-mismatch",
        "cudnn-init-failed-cause-unclear",
        "jax-cuda-plugin-missing",
        "jax-cuda-plugin-init-failed",
    ),
)
