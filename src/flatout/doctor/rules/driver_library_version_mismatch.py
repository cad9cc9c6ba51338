"""The loaded kernel module and the driver's libraries have different versions.

**Checks.** NVML's mismatch, the kernel's "API mismatch" line, and CUDA's error 803. On the machine:
the versions of the loaded module and of the libraries.

**Why it matters.** An update replaced the libraries while the old module stayed loaded. Neither
nvidia-smi nor CUDA works until both match.

**Example.** `Failed to initialize NVML: Driver/library version mismatch`

**Fix.** Restart the machine (or unload and load the modules); asks first.

**Source.** docs.nvidia.com/deploy/nvml-api (NVML_ERROR_LIB_RM_VERSION_MISMATCH);
NVIDIA/open-gpu-kernel-modules (API mismatch).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("nvml-mismatch", "kernel-api-mismatch", "dso-mismatch")


def check(case: Case) -> Finding | None:
    """Any of the three messages; under WSL they mean something else."""
    if not case.sees(*_SIGNS, "cuda-driver-combination"):
        return None
    module = case.value("kernel-api-mismatch", "module") or case.value("dso-mismatch", "module")
    library = case.value("kernel-api-mismatch", "library") or case.value("dso-mismatch", "library")
    is_sure = case.sees(*_SIGNS) and case.machine.host.wsl is None
    return Finding(
        rule="driver-library-version-mismatch",
        severity="error",
        certainty="decided" if is_sure else "likely",
        problem="The loaded NVIDIA kernel module and the driver's libraries differ in version.",
        because=f"module {module}, libraries {library}" if module and library
        else "an update replaced the libraries, and the old module is still loaded",
        evidence=case.evidence(*_SIGNS, "cuda-driver-combination", "kernel-module-version"),
        fixes=(
            Fix(
                text="restart the machine",
                safety="ask",
                commands=("sudo reboot",),
                where="host",
                changes="stops every running program, and loads the new module",
            ),
        ),
        confirm=("cat /proc/driver/nvidia/version", "modinfo nvidia | grep ^version"),
    )  # fmt: skip


def _in_facts(machine: Machine) -> Facts:
    """Module and libraries differ."""
    module = machine.module
    if module is None or not module.loaded or not module.user_space:
        return ()
    if module.loaded == module.user_space:
        return ()
    return (
        *fact(f"kernel module {module.loaded}", "/proc/driver/nvidia/version"),
        *fact(f"libnvidia-ml {module.user_space}", "its file's name"),
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(
        FactCheck(sign="dso-mismatch", read=_in_facts),
    ),
    signatures=(
        # The library's message, its enum, and the wording of NVIDIA's Python binding.
        signature("nvml-mismatch", "driver/library version mismatch",
                  "NVML_ERROR_LIB_RM_VERSION_MISMATCH", "NVML/RM version mismatch"),
        signature(
            "kernel-api-mismatch",
            "API mismatch",
            pattern=r"API mismatch: (?:the|this) (?:client|NVIDIA)[^\n]{0,60}version"
            r" (?P<library>\d[\d.]*\d)[^\n]{0,20}\n?[^\n]{0,60}version (?P<module>\d[\d.]*\d)"
            r"|NVRM: API mismatch",
            lines=3,
        ),
        signature(
            "dso-mismatch",
            "does not match DSO version",
            pattern=r"kernel version (?P<module>\d[\d.]*\d) does not match DSO version"
            r" (?P<library>\d[\d.]*\d)",
        ),
    ),
    explains=("host-nvidia-driver-missing",
              "nvidia-module-not-built-for-kernel"),
)  # fmt: skip
