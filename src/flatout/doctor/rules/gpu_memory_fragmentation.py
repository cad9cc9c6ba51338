"""The allocator holds much of the GPU's memory, but no free block is large enough.

**Checks.** In torch's message: memory reserved but not allocated, against the requested size; in
TensorFlow's statistics: the limit against the memory in use.

**Why it matters.** Batches of changing sizes leave gaps. Memory then runs out although enough of it
is unused.

**Example.** `Tried to allocate 2.93 GiB (GPU 0; 23.80 GiB total capacity; 12.04 GiB already
allocated; 2.82 GiB free; 19.69 GiB reserved in total by PyTorch)`

**Fix.** Let the allocator grow its segments, in this shell; safe. Use inputs of only a few
different sizes.

**Source.** docs.pytorch.org/docs/stable/notes/cuda.html, PYTORCH_CUDA_ALLOC_CONF;
mlverse/torch#1222.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.gpu_memory import OUT_OF_MEMORY, memory_from_text
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def check(case: Case) -> Finding | None:
    """The requested size is less than the unused reserved memory, which is a large share."""
    memory = memory_from_text(case.signs)
    if not (memory and memory.is_fragmented) and not _is_bfc_fragmented(case):
        return None
    is_windows = case.machine.host.os == "windows"
    option = "max_split_size_mb:128" if is_windows else "expandable_segments:True"
    command = f'$env:{_ALLOCATOR} = "{option}"' if is_windows else f"export {_ALLOCATOR}={option}"
    if memory is None:
        command = "export TF_GPU_ALLOCATOR=cuda_malloc_async"
    return Finding(
        rule="gpu-memory-fragmentation",
        severity="error",
        problem="The GPU's memory is fragmented: enough is unused, but not in one block.",
        because=f"{memory.unallocated / 2**30:.2f} GiB are reserved but not allocated"
        if memory
        else None,
        evidence=case.evidence(*OUT_OF_MEMORY, "bfc-statistics"),
        fixes=(
            Fix(
                text="reduce the allocator's fragmentation, and restart",
                safety="safe",
                commands=(command,),
                where="powershell" if is_windows else "here",
                changes="only this shell",
                undo="close the shell",
            ),
        ),
        confirm=('python -c "import torch; print(torch.cuda.memory_summary())"',),
    )


def _is_bfc_fragmented(case: Case) -> bool:
    limit, used = (case.value("bfc-statistics", name) for name in ("limit", "used"))
    wanted = case.value("bfc-wanted", "bytes")
    if not limit or not used or not wanted:
        return False
    unused = int(limit) - int(used)
    return unused >= 0.15 * int(limit) and unused >= int(wanted)


RULE = Rule(
    check=check,
    prior=70,
    signatures=(
        signature(
            "bfc-statistics",
            "Limit:",
            pattern=r"Limit:\s{1,40}(?P<limit>\d{6,15})\s*\n.{0,120}\bInUse:\s{1,40}(?P<used>\d+)",
            lines=2,
        ),
        signature(
            "bfc-wanted",
            "trying to allocate",
            pattern=r"trying to allocate [\d.]+\w{1,4} \(rounded to (?P<bytes>\d+)\)",
        ),
    ),
)
