"""Windows moved GPU memory to host memory: everything works, but slowly.

**Checks.** More memory allocated on a GPU than it has, and Task Manager's "Shared GPU memory".

**Why it matters.** When a card is full, the Windows driver, also under WSL, falls back to host
memory. Nothing fails, but each step takes many times as long.

**Example.** `8.00 GiB total capacity; 17.20 GiB already allocated`

**Fix.** Use less memory than the card has. Without WSL, "CUDA - Sysmem Fallback Policy" can be set
to "Prefer No Sysmem Fallback" in NVIDIA's control panel; by hand. WSL does not obey it.

**Source.** nvidia.custhelp.com/app/answers/detail/a_id/5490; microsoft/WSL#11050.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.gpu_memory import memory_from_text
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """More is allocated than the card has, or Task Manager shows it."""
    memory = memory_from_text(case.signs)
    is_spilled = bool(memory and memory.is_spilled)
    shared = case.value("shared-gpu-memory", "used")
    is_shown = shared is not None and float(shared.replace(",", ".")) >= 1.0
    if not is_spilled and not is_shown and not case.sees("sysmem-fallback-named"):
        return None
    return Finding(
        rule="gpu-memory-spilled-to-host",
        severity="warning",
        certainty="decided" if is_shown or is_spilled else "likely",
        problem="GPU memory was moved to host memory, which is slow.",
        because="the Windows driver falls back to host memory when the card is full",
        evidence=case.evidence("torch-out-of-memory", "shared-gpu-memory", "sysmem-fallback-named"),
        fixes=(
            Fix(text="use less memory than the card has, with a smaller micro-batch"),
            Fix(
                text=(
                    'or, without WSL, set "CUDA - Sysmem Fallback Policy" to "Prefer No '
                    "Sysmem Fallback\" in NVIDIA's control panel"
                ),
                where="powershell",
                changes="a full card raises an error again",
                undo="set it back",
            ),
        ),
        confirm=("nvidia-smi",),
    )


RULE = Rule(
    check=check,
    signatures=(
        signature(
            "shared-gpu-memory",
            "Shared GPU memory",
            pattern=r"Shared GPU memory(?: usage)?\W{1,4}(?P<used>\d{1,3}(?:[.,]\d)?)"
            r"(?: ?GB)? ?(?:/|of|GB)",
        ),
        signature(
            "sysmem-fallback-named",
            "Sysmem Fallback",
            "system memory fallback",
            "spilling into shared memory",
            "spilled to system memory",
        ),
    ),
)
