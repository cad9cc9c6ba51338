"""TensorFlow 2.11 and later has no GPU support on native Windows.

**Checks.** TensorFlow's version and the platform, if no GPU is listed, and TensorFlow's own
warning. On the machine: the version, on Windows with a GPU.

**Why it matters.** 2.10 was the last release with CUDA for Windows. Newer releases run on the CPU,
whatever CUDA and cuDNN are installed.

**Example.** `TensorFlow GPU support is not available on native Windows for TensorFlow >= 2.11.`

**Fix.** Use TensorFlow in WSL: `pip install 'tensorflow[and-cuda]'` there; by hand.

**Source.** tensorflow.org/install/pip, Windows native; tensorflow/tensorflow#60237, #85006.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """TensorFlow reports it; or a new TensorFlow on Windows lists no GPU."""
    is_explicit = case.sees("tf-windows-unsupported")
    is_windows = case.machine.host.os == "windows" or case.sees("tf-windows-package")
    found = case.machine.framework("tensorflow")
    is_new = found is not None and _version(found.version) >= (2, 11)
    is_seen = is_windows and is_new and case.sees("tf-no-gpu-listed") and not case.is_wsl
    if not is_explicit and not is_seen:
        return None
    return Finding(
        rule="tf-gpu-unsupported-on-native-windows",
        severity="error",
        problem="TensorFlow 2.11 and later has no GPU support on native Windows.",
        because="2.10 was the last release with CUDA for Windows",
        evidence=case.evidence(
            "tf-windows-unsupported", "tensorflow-version", "tf-windows-package", "tf-no-gpu-listed"
        ),
        fixes=(
            Fix(
                text="use TensorFlow in WSL",
                commands=("wsl --install", "pip install 'tensorflow[and-cuda]'"),
                where="powershell",
                changes="installs WSL; run the second command in its shell",
            ),
        ),
        confirm=('python -c "import tensorflow as tf; print(tf.__version__)"',),
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def _in_facts(machine: Machine) -> Facts:
    """TensorFlow after 2.10 on Windows with a GPU."""
    found = machine.framework("tensorflow")
    if machine.host.os != "windows" or found is None or not machine.gpus:
        return ()
    if version(found.version) < (2, 11):
        return ()
    return (
        *fact(f"tensorflow {found.version}", "metadata"),
        *fact(machine.gpus[0].name or "a GPU", "NVML"),
    )


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(FactCheck(sign="tf-windows-unsupported", read=_in_facts, severity="warning"),),
    signatures=(
        signature("tf-windows-unsupported", "GPU support is not available on native Windows"),
        signature("tf-windows-package", "tensorflow-intel", "tensorflow_intel"),
        signature(
            "tf-no-gpu-listed",
            "physical_device",
            "Num GPUs Available",
            "GPU Available",
            "NOT AVAILABLE",
            "list_physical_devices",
            "is_gpu_available",
            pattern=r"\[PhysicalDevice\(name='/physical_device:CPU:0', device_type='CPU'\)\]"
            r"|Num GPUs Available:?\W{1,4}0\b|GPU Available:?\W{1,4}(?:\[\]|False)"
            r"|GPU is NOT AVAILABLE"
            r"|list_physical_devices\(\W{0,2}GPU\W{0,2}\)\)?\W{0,4}\n?\W{0,4}\[\]"
            r"|is_gpu_available[^\n]{0,60}\n?[^\n]{0,20}False",
            lines=2,
        ),
    ),
    explains=("tf-cuda-libraries-not-found",),
)
