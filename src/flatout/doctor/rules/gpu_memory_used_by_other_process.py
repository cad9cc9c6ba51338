"""Another process, possibly a leftover one, holds the GPU's memory.

**Checks.** In torch's message: memory that is neither free nor this process's; processes without a
name in nvidia-smi; the free memory that TensorFlow and vLLM report at startup. On the machine: less
than half of a GPU's memory is free; reported as a note.

**Why it matters.** A notebook that is still open, a child process of a killed run, or another
user's job holds memory until it exits. A smaller batch only hides that.

**Example.** `Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 2.81 GiB already
allocated; 25.38 MiB free; 3.06 GiB reserved in total by PyTorch)`

**Fix.** Find the processes and stop your own; by hand.

**Source.** nianticlabs/monodepth2#236, apache/mxnet#4242;
docs.pytorch.org/docs/stable/notes/faq.html, "My GPU memory isn't freed properly".
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.gpu_memory import OUT_OF_MEMORY, memory_from_text
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text

_EXPLICIT = ("process-without-name", "little-memory-at-start", "share-not-free")


def check(case: Case) -> Finding | None:
    """The card is full, but not because of this process."""
    is_out = case.sees(*OUT_OF_MEMORY) and not case.sees("cuda-init-out-of-memory")
    memory = memory_from_text(case.signs)
    is_explicit = bool(memory and memory.is_used_by_others) or case.sees(*_EXPLICIT)
    # A message without numbers comes from CUDA, before torch's allocator holds any memory.
    is_bare = is_out and memory is None and case.sees("gpu-out-of-memory")
    if not is_explicit and not is_bare:
        return None
    certainty: Certainty = "decided" if is_explicit else "possible"
    return Finding(
        rule="gpu-memory-used-by-other-process",
        severity="error" if is_out or case.sees("share-not-free") else "warning",
        certainty=certainty,
        problem="Another process holds the GPU's memory.",
        because=_foreign(memory.foreign) if memory and memory.is_used_by_others else None,
        evidence=case.evidence(*OUT_OF_MEMORY, *_EXPLICIT),
        fixes=(
            Fix(
                text="find the processes that use the GPU, and stop your own",
                commands=("nvidia-smi", "sudo fuser -v /dev/nvidia*"),
                where="host",
            ),
        ),
        confirm=("nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",),
    )


def _foreign(amount: float) -> str:
    return f"{amount / 2**30:.2f} GiB are in use by other processes"


def _in_facts(machine: Machine) -> Facts:
    """More than half of a card is in use."""
    return tuple(
        one
        for gpu in machine.gpus
        if gpu.free_bytes is not None and gpu.memory_bytes and not gpu.is_mig_on
        and gpu.free_bytes < gpu.memory_bytes / 2
        for one in fact(
            f"GPU {gpu.index}: {bytes_text(gpu.free_bytes)} of {bytes_text(gpu.memory_bytes)} free",
            "NVML",
        )
    )  # fmt: skip


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="share-not-free", read=_in_facts, severity="note"),),
    signatures=(
        # The process exited but its children live on: the driver has a PID but no name.
        signature(
            "process-without-name",
            "Unknown Error",
            "Not Found",
            "defunct",
            pattern=r"\bC(?:\+G)?\s+(?:Unknown Error|\[?Not Found\]?)\s+\d{3,}\s?MiB"
            r"|\[python\d?\] <defunct>",
        ),
        signature(
            "little-memory-at-start",
            "MB memory",
            "freeMemory",
            pattern=r"GPU:\d+ with (?:0|\d{1,3}) MB memory|freeMemory: (?:\d{1,3}\.\d+MiB|0B)",
        ),
        signature(
            "share-not-free",
            "on startup is less than desired GPU memory utilization",
            "is less than the required memory fraction",
        ),
    ),
    explains=("cublas-init-failed-cause-unclear", "cudnn-init-failed-cause-unclear"),
)
