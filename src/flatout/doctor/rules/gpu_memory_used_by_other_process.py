"""Another process, or a dead one, holds the GPU's memory.

**Checks.** In torch's message: what is neither free nor this process's; processes of nvidia-smi
without a name; what TensorFlow and vLLM find free when they start. On the machine: less than half
of a GPU's memory is free; a note.

**Why it matters.** A notebook that is still open, a child of a run that was killed, or a
colleague hold memory until they end. A smaller batch only hides that.

**Example.** `Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 2.81 GiB already
allocated; 25.38 MiB free; 3.06 GiB reserved in total by PyTorch)`

**Fix.** Find the processes and end those that are yours; by hand.

**Source.** nianticlabs/monodepth2#236, apache/mxnet#4242;
docs.pytorch.org/docs/stable/notes/faq.html, "My GPU memory isn't freed properly".
"""

from __future__ import annotations

from flatout.doctor.logs.gpu_memory import OUT_OF_MEMORY, memory_told
from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Certainty, Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.units import bytes_text

_TOLD = ("process-without-name", "little-memory-at-start", "share-not-free")


def check(case: Case) -> Finding | None:
    """The card is full, and this process does not fill it."""
    is_out = case.sees(*OUT_OF_MEMORY) and not case.sees("cuda-init-out-of-memory")
    told = memory_told(case.signs)
    is_told = bool(told and told.is_used_by_others) or case.sees(*_TOLD)
    # A bare message comes from CUDA before torch's allocator has anything.
    is_bare = is_out and told is None and case.sees("gpu-out-of-memory")
    if not is_told and not is_bare:
        return None
    certainty: Certainty = "decided" if is_told else "possible"
    return Finding(
        rule="gpu-memory-used-by-other-process",
        severity="error" if is_out or case.sees("share-not-free") else "warning",
        certainty=certainty,
        problem="Another process holds the GPU's memory.",
        because=_foreign(told.foreign) if told and told.is_used_by_others else None,
        evidence=case.evidence(*OUT_OF_MEMORY, *_TOLD),
        fixes=(
            Fix(
                text="find the processes that hold the GPU, and end those that are yours",
                commands=("nvidia-smi", "sudo fuser -v /dev/nvidia*"),
                where="host",
            ),
        ),
        confirm=("nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",),
    )


def _foreign(amount: float) -> str:
    return f"{amount / 2**30:.2f} GiB are in use and not this process's"


def _in_facts(machine: Machine) -> Facts:
    """Somebody holds more than half of a card."""
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
    readings=(Reading(sign="share-not-free", read=_in_facts, severity="note"),),
    signatures=(
        # A process that ended and whose children live: the driver has a number and no name.
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
