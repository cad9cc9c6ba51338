"""The program does not fit into the GPU's memory.

**Checks.** Out-of-memory messages of torch, TensorFlow, JAX, Paddle, CuPy, XGBoost, ONNX Runtime
and vLLM, and the numbers in torch's message.

**Why it matters.** Weights, gradients, optimizer and activations must fit together. Allocator
settings do not help if the program itself fills the card.

**Example.** `CUDA out of memory. Tried to allocate 1.39 GiB (GPU 0; 6.00 GiB total capacity; 4.04
GiB already allocated`

**Fix.** Use a smaller micro-batch with gradient accumulation, activation checkpointing or a lower
precision; by hand. `flatout train` chooses these itself.

**Source.** docs.pytorch.org/docs/stable/notes/cuda.html, memory management;
pytorch/pytorch:c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.gpu_memory import GPU_MEMORY, OUT_OF_MEMORY, memory_from_text
from flatout.schema.finding import Certainty, Finding, Fix


def check(case: Case) -> Finding | None:
    """Memory ran out; decided if the numbers show that this program filled the card."""
    if not case.sees(*OUT_OF_MEMORY) or case.sees("cuda-init-out-of-memory"):
        return None
    memory = memory_from_text(case.signs)
    certainty: Certainty = "likely"
    if case.sees("serving-out-of-memory", "allocator-out-of-memory"):
        certainty = "decided"
    if memory and memory.total:
        certainty = "possible" if memory.is_fragmented or memory.is_used_by_others else "decided"
    if case.sees("process-without-name", "little-memory-at-start", "share-not-free"):
        certainty = "possible"
    return Finding(
        rule="gpu-memory-too-small",
        severity="error",
        certainty=certainty,
        problem="The program does not fit into the GPU's memory.",
        because=_numbers(memory.requested, memory.free, memory.total) if memory else None,
        evidence=case.evidence(*OUT_OF_MEMORY),
        fixes=(
            Fix(text="use a smaller micro-batch with gradient accumulation, or shorter inputs"),
            Fix(
                text=(
                    "or use activation checkpointing, bfloat16, or an optimizer with a smaller "
                    "state"
                )
            ),
        ),
        confirm=("nvidia-smi",),
    )


def _numbers(wanted: float, free: float | None, total: float | None) -> str | None:
    if free is None or total is None:
        return None
    gib = [f"{amount / 2**30:.2f}" for amount in (wanted, free, total)]
    return f"it requested {gib[0]} GiB; {gib[1]} of {gib[2]} GiB were free"


RULE = Rule(
    check=check,
    prior=60,
    signatures=GPU_MEMORY,
    explains=("cublas-init-failed-cause-unclear", "cudnn-init-failed-cause-unclear"),
)
