"""Messages that a GPU's memory ran out, and the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from flatout.doctor.signature import Sign, signature

_AMOUNT = r"(\d[\d.]{0,15}) ?(bytes|[KMGT]i?B)"
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
# Excludes pinned host memory and CUDA initialization, which are not GPU memory. TensorFlow prints
# "not a failure" if its caller can use less memory.
_OF_THE_GPU = (
    r"^(?!.*(?:on host|pinned|HostAlloc|MallocHost|cuInit|cudaGetDeviceCount|not a failure))"
)
_CUDA = r"\b(?:CUDA|CUDART|HIP|XPU|GPU\w*)\b"

GPU_MEMORY = (
    # torch's allocator, all versions; the message may be cut into lines.
    signature(
        "torch-out-of-memory",
        "Tried to allocate",
        pattern=r"(?:out of memory|OutOfMemory)\S{0,40}.{0,200}(?P<numbers>Tried to allocate"
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
    # vLLM and similar servers reserve a share of the card at startup.
    signature(
        "serving-out-of-memory",
        "No available memory for the cache blocks",
        "can be stored in KV cache",
        "is larger than the available KV cache memory",
        "Make sure you have enough GPU RAM",
        "Not enough memory. Please try to increase --mem-fraction-static",
    ),
)  # fmt: skip

# Shares of the card's memory, chosen to keep quiet rather than to blame the wrong thing. Unused
# memory of the allocator below the first is its usual slack.
_FRAGMENTED_SHARE = 0.15
# Other processes that torch names: below this it is a desktop, or a CUDA context or two.
_NAMED_SHARE = 0.1
# Memory that nobody is named for: CUDA's own context, the display and what the driver reserves are
# part of it, so more is requested, and on a small card at least so many bytes.
_FOREIGN_SHARE = 0.25
_FOREIGN_BYTES = 2 * 2**30

OUT_OF_MEMORY = tuple(signature.id for signature in GPU_MEMORY)


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of torch's message, in bytes. others: total of the other processes it names."""

    requested: float
    total: float | None = None
    free: float | None = None
    allocated: float | None = None
    reserved: float | None = None
    own: float | None = None
    others: float = 0.0

    @property
    def unallocated(self) -> float:
        """Reserved by torch but not in use."""
        return max(0.0, (self.reserved or 0.0) - (self.allocated or 0.0))

    @property
    def foreign(self) -> float:
        """Memory in use on the card, but not by this process.

        Inside a container, the driver's process ids differ from ours, and the process may list
        itself among the others.
        """
        if self.total is None or self.free is None or self.reserved is None:
            return 0.0
        return max(0.0, self.total - self.free - max(self.own or 0.0, self.reserved))

    @property
    def is_spilled(self) -> bool:
        """More is allocated than the card has: Windows fell back to host memory."""
        return bool(self.total and self.allocated and self.allocated > self.total)

    @property
    def is_fragmented(self) -> bool:
        """The request would fit into torch's unused memory, which is a large share."""
        if self.total is None or self.is_spilled:
            return False
        is_large = self.unallocated >= _FRAGMENTED_SHARE * self.total
        return is_large and self.requested <= self.unallocated + (self.free or 0.0)

    @property
    def is_used_by_others(self) -> bool:
        """It would fit without other processes, which use more than a desktop and CUDA do."""
        if self.total is None or self.is_spilled:
            return False
        is_named = self.own is not None and self.others >= _NAMED_SHARE * self.total
        is_much = self.foreign >= max(_FOREIGN_BYTES, _FOREIGN_SHARE * self.total)
        return (is_named or is_much) and self.requested <= (self.free or 0.0) + self.foreign


def memory_from_text(signs: Mapping[str, Sequence[Sign]]) -> GpuMemory | None:
    """The numbers in torch's first message that has any."""
    for sign in signs["torch-out-of-memory"]:
        text = sign.values.get("numbers", "")
        requested = _amount(rf"allocate {_AMOUNT}", text)
        if requested is None:
            continue
        allocated = _amount(
            rf"{_AMOUNT} (?:already allocated|is allocated by PyTorch)"
            rf"|allocated memory {_AMOUNT}",
            text,
        )
        unallocated = _amount(rf"{_AMOUNT} (?:is reserved by PyTorch but|cached)", text)
        reserved = _amount(rf"{_AMOUNT} reserved in total", text)
        if reserved is None and allocated is not None:
            reserved = allocated + (unallocated or 0.0)
        named = re.findall(rf"Process \d+ has {_AMOUNT} memory in use", text)
        return GpuMemory(
            requested=requested,
            total=_amount(rf"{_AMOUNT} total capac|total capac\w{{1,4}} of {_AMOUNT}", text),
            free=_amount(rf"{_AMOUNT} (?:is )?free", text),
            allocated=allocated,
            reserved=reserved,
            own=_amount(rf"this process has {_AMOUNT}", text),
            others=sum(_bytes(number, unit) for number, unit in named),
        )
    return None


def _amount(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> float:
    return float(number.rstrip(".")) * _UNITS[unit[0].lower()]
