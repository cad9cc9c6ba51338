"""This build has no kernels for the GPU's compute capability.

**Checks.** Messages of torch, TensorFlow, Paddle, JAX, CuPy, Triton, llama.cpp, nvcc and ROCm about
missing architectures and kernels. On the machine and from a text: the card against the architecture
lists of published builds.

**Why it matters.** A build contains machine code for certain compute capabilities. On a card newer
or older than all of them nothing runs, whatever the driver.

**Example.** `NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the
current PyTorch installation.`

**Fix.** Install a build for the card's compute capability; asks first. For torch, CUDA 13 builds
start at 7.5, and RTX 50 needs CUDA 12.8 or newer.

**Source.** pytorch/pytorch:torch/cuda/__init__.py; pytorch/pytorch#150733;
PaddlePaddle/Paddle#73687; tensorflow/tensorflow#99592.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.doctor.torch_install import torch_install
from flatout.schema.finding import Certainty, Finding
from flatout.schema.machine import Machine

_DECISIVE = ("arch-refused",)
_AMBIGUOUS = ("invalid-device-function",)
_RANGE = "capability supported by this"


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_DECISIVE, *_AMBIGUOUS):
        return None
    if _is_served_by_its_generation(case):
        return None
    # A ROCm build warns because it compares AMD's numbers with NVIDIA's, but works.
    if case.sees("amd-card") and not case.sees("kernel-missing"):
        return None
    # TensorFlow then compiles at first start, which is slow but usually works.
    lines = [sign.text for sign in case.signs["arch-refused"] if sign.where is None]
    is_compiled = bool(lines) and all("jit-compiled from PTX" in text for text in lines)
    is_slow = is_compiled and not case.sees(*_AMBIGUOUS, "handle-refused")
    certainty: Certainty = "possible" if is_slow else "likely"
    if case.sees(*_DECISIVE) and not is_slow:
        certainty = "decided"
    return Finding(
        rule="gpu-arch-not-in-build",
        severity="warning" if is_slow else "error",
        certainty=certainty,
        problem="This build has no kernels for the GPU's compute capability.",
        because="the build targets other cards",
        evidence=case.evidence(*_DECISIVE, *_AMBIGUOUS),
        fixes=(torch_install(case.machine),),
        confirm=(
            (
                'python -c "import torch; print(torch.cuda.get_arch_list(), '
                'torch.cuda.get_device_capability())"'
            ),
            "nvidia-smi --query-gpu=name,compute_cap --format=csv",
        ),
    )


def _is_served_by_its_generation(case: Case) -> bool:
    """Whether torch only warns about a minor version: code for 12.0 runs on 12.1."""
    newer = [sign.values for sign in case.signs["capability-range"]]
    others = [
        one
        for one in case.signs["arch-refused"]
        if one.where is None and _RANGE not in one.text.lower()
    ]
    return (
        bool(newer)
        and all(
            one["major"] == one["top"] and int(one["minor"]) > int(one["last"]) for one in newer
        )
        and not others
        and not case.sees(*_AMBIGUOUS)
    )


def _in_facts(machine: Machine) -> Facts:
    """A framework's build supports no card of this machine."""
    if not machine.gpus or not machine.frameworks:
        return ()
    # Imported only if there is a build to check: the tables are slow to load.
    from flatout.doctor.installed_build import why_no_card_fits

    for one in machine.frameworks:
        why = why_no_card_fits(one, machine)
        if why is not None:
            card = machine.gpus[0]
            capability = card.compute_capability
            name = card.name or "GPU"
            return (
                *fact(f"{name}, compute capability {capability}" if capability else name, "NVML"),
                *fact(f"{one.name} {one.version} ({one.build}): {why}", "metadata"),
            )
    return ()


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="arch-refused", read=_in_facts, is_for_texts=True),),
    signatures=(
        signature(
            "arch-refused",
            "not compatible with the current PyTorch installation",
            "it is too old",
            "capability supported by this",
            "no kernel image is available",
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            "cudaErrorNoKernelImageForDevice",
            "CUDA_ERROR_INVALID_PTX",
            "minimum required Cuda capability",
            "compatible with compute capability",
            "does not support target",
            "is not defined for option",
            "Unsupported gpu architecture",
            "has no device code compatible",
            "hipErrorNoBinaryForGpu",
            "HIP error: invalid device function",
            "Mismatched GPU Architecture",
            "which is not compatible with Paddle",
            "CUBLAS_STATUS_ARCH_MISMATCH",
            "CUDNN_STATUS_ARCH_MISMATCH",
            "for --gpu-architecture",
            "but was built for sm",
            "Unsupported GPU architecture",
            "ptxas does not support CC",
            "is not compatible with the current",
            "hipErrorInvalidDeviceFunction",
            "compatible with the GPU",
            "which is not supported by Paddle",
            pattern=r"with CUDA capability sm_\d+ is not compatible|"
            r"supports? this GPU because it is too old|"
            r"[Mm]inimum (?:and Maximum )?cuda capability supported by this|"
            r"no kernel image is available|NO_BINARY_FOR_GPU|NoKernelImageForDevice|"
            r"CUDA_ERROR_INVALID_PTX|minimum required Cuda capability is|"
            r"not built with CUDA kernel binaries|"
            r"does not support (?:target )?'?\.?(?:target )?'?sm_\d+|'(?:sm|"
            r"compute)_\w+' is not defined for option|Unsupported gpu architecture|"
            r"no device code compatible with|Unable to find code object for all|"
            r"hipErrorNoBinaryForGpu|HIP error: invalid device function|"
            r"Mismatched GPU Arch|not compatible with Paddle installation|"
            r"GPU compute capability in .{0,60}not supported by Paddle|"
            r"_STATUS_ARCH_MISMATCH|invalid value for --gpu-architecture|"
            r"but was built for sm|ptxas does not support CC|"
            r"hipErrorInvalidDeviceFunction",
        ),
        signature(
            "invalid-device-function",
            "invalid device function",
            "named symbol not found",
            "cudaErrorInvalidDeviceFunction",
            "cudaErrorSymbolNotFound",
            "CUDA_ERROR_INVALID_SOURCE",
            "Cannot select: intrinsic",
            pattern=r"CUDA.{0,30}(?:invalid device function|named symbol not found)|"
            r"cudaErrorInvalidDeviceFunction|cudaErrorSymbolNotFound|"
            r"CUDA_ERROR_INVALID_SOURCE|Cannot select: intrinsic %llvm\.nvvm",
        ),
        signature("handle-refused", "CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle"),
        signature(
            "capability-range",
            "which is of cuda capability",
            pattern=r"cuda capability (?P<major>\d+)\.(?P<minor>\d+)\.\s{1,8}Minimum and Maximum "
            r"cuda capability supported by this version of PyTorch is\s{1,8}\(\d+\.\d+\) - "
            r"\((?P<top>\d+)\.(?P<last>\d+)\)",
            lines=4,
        ),
        signature("amd-card", "Radeon", "ROCm", "Instinct"),
        signature(
            "kernel-missing",
            "no kernel image is available",
            "invalid device function",
            "hipErrorNoBinaryForGpu",
        ),
    ),
    explains=(
        "cuda-illegal-memory-access",
        "triton-gpu-too-old",
    ),
)
