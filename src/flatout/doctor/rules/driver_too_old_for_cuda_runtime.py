"""The driver is too old for the framework's CUDA version.

**Checks.** Driver errors of torch, JAX, Paddle and CUDA itself, and the driver API and runtime
versions they print. On the machine: framework builds whose CUDA needs a newer driver.

**Why it matters.** A driver supports CUDA up to the version it was made for (since CUDA 11, any
minor version of the same major version). With a newer CUDA, nothing runs on the GPU.

**Example.** `The NVIDIA driver on your system is too old (found version 10010)`

**Fix.** Install a newer driver (for WSL, in Windows), or a build for an older CUDA.

**Source.** docs.nvidia.com/cuda/cuda-toolkit-release-notes/ (toolkits and driver versions);
pytorch/pytorch: c10/cuda/CUDAFunctions.cpp.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("driver-too-old", "cuda-driver-insufficient", "ptx-toolchain", "driver-and-runtime")


def check(case: Case) -> Finding | None:
    """The framework reports it, or the printed versions are incompatible."""
    is_older = _is_older_major(
        case.value("driver-and-runtime", "driver"), case.value("driver-and-runtime", "runtime")
    )
    is_explicit = case.sees("driver-too-old", "cuda-driver-insufficient", "ptx-toolchain")
    if not is_explicit and not is_older:
        return None
    certainty: Certainty = "decided"
    if not case.sees("driver-too-old") and not is_older:
        # CUDA also says "insufficient" if there is no driver at all.
        has_driver = case.machine.driver is not None
        certainty = "decided" if has_driver or not case.is_container else "likely"
    found = case.value("driver-too-old", "found")
    cuda = f"{int(found) // 1000}.{int(found) % 1000 // 10}" if found else case.machine.cuda
    return Finding(
        rule="driver-too-old-for-cuda-runtime",
        severity="error",
        certainty=certainty,
        problem="The NVIDIA driver is too old for this program's CUDA version.",
        because=f"the driver supports CUDA up to {cuda}" if cuda else None,
        evidence=case.evidence(*_SIGNS, "nvidia-smi-head", "kernel-module-version"),
        fixes=(
            Fix(
                text="install a newer NVIDIA driver"
                + (" in Windows (never inside WSL)" if case.is_wsl else "")
                + ", or a build of the framework for an older CUDA",
                where="powershell" if case.is_wsl else "host",
            ),
        ),
        confirm=("nvidia-smi", 'python -c "import torch; print(torch.version.cuda)"'),
    )


def _is_older_major(driver: str | None, runtime: str | None) -> bool:
    """Whether the driver's CUDA is of an older major version; before 11, of any older version."""
    if driver is None or runtime is None:
        return False
    ours, theirs = (tuple(map(int, text.split("."))) for text in (driver, runtime))
    return ours < theirs if theirs < (11, 0) else ours[0] < theirs[0]


def _in_facts(machine: Machine) -> Facts:
    """A framework's CUDA needs a newer driver than the installed one."""
    if not machine.driver or not machine.frameworks:
        return ()
    # Imported only if there is a build to check: the tables are slow to load.
    from flatout.doctor.installed_build import oldest_driver

    # NVIDIA's compatibility package runs a newer CUDA on older data center drivers.
    if any("/compat" in one.path for one in machine.libraries or ()):
        return ()
    for one in machine.frameworks:
        oldest = oldest_driver(one, machine)
        if oldest and version(machine.driver) < version(oldest):
            return (
                *fact(f"driver {machine.driver}", "NVML"),
                *fact(f"{one.name} {one.version} ({one.build}) needs {oldest}", "metadata"),
            )
    return ()


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(FactCheck(sign="driver-too-old", read=_in_facts, is_for_texts=True),),
    signatures=(
        signature(
            "driver-too-old",
            "driver on your system is too old",
            "driver is too old",
            "cudaErrorDriverTooOld",
            "newer than the driver",
            "version is too old",
            "driver must be updated",
            pattern=r"driver on your system is too old[^\n]{0,20}\n?[^\n]{0,20}"
            r"\(found version (?P<found>\d+)\)|driver is too old|driver version is too old"
            r"|newer than the driver|driver must be updated",
            lines=2,
        ),
        signature(
            "ptx-toolchain",
            "compiled with an unsupported toolchain",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        ),
        signature(
            "driver-and-runtime",
            "Driver API Version",
            "CUDA Driver Version",
            pattern=r"(?:Driver API Version:|CUDA Driver Version / Runtime Version)\s+"
            r"(?P<driver>\d+\.\d+)(?:, Runtime API Version:| /) (?P<runtime>\d+\.\d+)",
        ),
    ),
)
