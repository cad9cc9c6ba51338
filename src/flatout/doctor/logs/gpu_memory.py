"""What programs say when a GPU's memory runs out, and the numbers that they give."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from flatout.doctor.signature import Sign, signature

_AMOUNT = r"(\d[\d.]{0,15}) ?(bytes|[KMGT]i?B)"
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# Not the GPU's memory: pinned memory of the host, and CUDA that does not start.
# TensorFlow says "not a failure" where its caller can do with less.
_OF_THE_GPU = (
    r"^(?!.*(?:on host|pinned|HostAlloc|MallocHost|cuInit|cudaGetDeviceCount|not a failure))"
)
_CUDA = r"\b(?:CUDA|CUDART|HIP|XPU|GPU\w*)\b"

GPU_MEMORY = (
    # torch's allocator, all versions; the message may be cut into lines.
    signature(
        "torch-out-of-memory",
        "Tried to allocate",
        pattern=r"(?:out of memory|OutOfMemory)\S{0,40}.{0,200}(?P<told>Tried to allocate"
        r"[\s\S]{0,900})",
        lines=8,
    ),
    signature(
        "gpu-out-of-memory",
        "out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation",
        "CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "out_of_memory",
        pattern=_OF_THE_GPU + rf".*?(?:{_CUDA}.{{0,80}}out.of.memory|CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation|_STATUS_ALLOC_FAILED|cudaMalloc.{0,40}out of memory"
        r"|MPS backend out of memory|out of memory error on GPU|CUDA.{0,4}error.{0,8}\b2\b)",
    ),
    # TensorFlow, JAX, Paddle, CuPy, XGBoost, ONNX Runtime.
    signature(
        "allocator-out-of-memory",
        "OOM when allocating tensor", "ran out of memory trying to allocate",
        "while trying to allocate", "Failed to allocate request for", "Out of memory allocating",
        "Memory allocation error on worker", "Failed to allocate memory for requested buffer",
        "Out of memory error on GPU", "Unable to allocate memory on GPU",
        pattern=r"OOM when allocating tensor(?!.{0,400}(?:device:CPU|allocator (?:cpu|mklcpu)))"
        r"|\(GPU_\d+_bfc\) ran out of memory(?!.{0,300}not a failure)"
        r"|Out of memory while trying to allocate \d+"
        r"|Failed to allocate request for [\d.]+|Out of memory allocating [\d,]+ bytes"
        r"|Memory allocation error on worker|allocate memory for requested buffer of size"
        r"|Out of memory error on GPU|Unable to allocate memory on GPU",
    ),
    # vLLM and its like ask for a share of the card when they start.
    signature(
        "serving-out-of-memory",
        "No available memory for the cache blocks",
        "can be stored in KV cache",
        "is larger than the available KV cache memory",
        "Make sure you have enough GPU RAM",
        "Not enough memory. Please try to increase --mem-fraction-static",
    ),
)  # fmt: skip

OUT_OF_MEMORY = tuple(one.id for one in GPU_MEMORY)


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of torch's message, in bytes. others: processes that it names, together."""

    wanted: float
    total: float | None = None
    free: float | None = None
    allocated: float | None = None
    reserved: float | None = None
    own: float | None = None
    others: float = 0.0

    @property
    def unallocated(self) -> float:
        """Reserved by torch and not in use."""
        return max(0.0, (self.reserved or 0.0) - (self.allocated or 0.0))

    @property
    def foreign(self) -> float:
        """Used on the card, and by this process neither reserved nor said to be in use.

        Inside a container the driver's process ids are not ours, and the process may name itself
        among the others.
        """
        if self.total is None or self.free is None or self.reserved is None:
            return 0.0
        return max(0.0, self.total - self.free - max(self.own or 0.0, self.reserved))

    @property
    def is_spilled(self) -> bool:
        """More is allocated than the card holds: Windows lent some of the machine's memory."""
        return bool(self.total and self.allocated and self.allocated > self.total)

    @property
    def is_fragmented(self) -> bool:
        """What is wanted would fit into what torch holds unused, which is a large share."""
        if self.total is None or self.is_spilled:
            return False
        is_large = self.unallocated >= 0.15 * self.total
        return is_large and self.wanted <= self.unallocated + (self.free or 0.0)

    @property
    def is_used_by_others(self) -> bool:
        """Without what others hold it would fit, and that is more than a desktop and CUDA take."""
        if self.total is None or self.is_spilled:
            return False
        is_named = self.own is not None and self.others >= 0.1 * self.total
        is_much = self.foreign >= max(2 * 2**30, 0.25 * self.total)
        return (is_named or is_much) and self.wanted <= (self.free or 0.0) + self.foreign


def memory_told(signs: Mapping[str, Sequence[Sign]]) -> GpuMemory | None:
    """The numbers of the first message of torch that has any."""
    for sign in signs["torch-out-of-memory"]:
        told = sign.values.get("told", "")
        wanted = _amount(rf"allocate {_AMOUNT}", told)
        if wanted is None:
            continue
        allocated = _amount(
            rf"{_AMOUNT} (?:already allocated|is allocated by PyTorch)"
            rf"|allocated memory {_AMOUNT}",
            told,
        )
        unallocated = _amount(rf"{_AMOUNT} (?:is reserved by PyTorch but|cached)", told)
        reserved = _amount(rf"{_AMOUNT} reserved in total", told)
        if reserved is None and allocated is not None:
            reserved = allocated + (unallocated or 0.0)
        named = re.findall(rf"Process \d+ has {_AMOUNT} memory in use", told)
        return GpuMemory(
            wanted=wanted,
            total=_amount(rf"{_AMOUNT} total capac|total capac\w{{1,4}} of {_AMOUNT}", told),
            free=_amount(rf"{_AMOUNT} (?:is )?free", told),
            allocated=allocated,
            reserved=reserved,
            own=_amount(rf"this process has {_AMOUNT}", told),
            others=sum(_bytes(number, unit) for number, unit in named),
        )
    return None


def _amount(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> float:
    return float(number.rstrip(".")) * _UNITS[unit[0].lower()]
