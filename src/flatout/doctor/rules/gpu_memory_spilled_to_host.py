"""Windows moved GPU memory into the machine's: everything works, slowly.

**Checks.** More memory allocated on a GPU than it has, and what the task manager calls shared GPU
memory.

**Why it matters.** Windows' driver, also under WSL, lends the machine's memory where a card is
full. Nothing fails, and each step takes many times as long.

**Example.** `8.00 GiB total capacity; 17.20 GiB already allocated`

**Fix.** Use less than the card has. Without WSL, "CUDA - Sysmem Fallback Policy" can be set to
"Prefer No Sysmem Fallback" in NVIDIA's control panel; by hand. WSL does not obey it.

**Source.** nvidia.custhelp.com/app/answers/detail/a_id/5490; microsoft/WSL#11050.
"""

from __future__ import annotations

from flatout.doctor.logs.gpu_memory import memory_told
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """More is allocated than the card has, or the task manager shows it."""
    told = memory_told(case.signs)
    is_spilled = bool(told and told.is_spilled)
    shared = case.value("shared-gpu-memory", "used")
    is_shown = shared is not None and float(shared.replace(",", ".")) >= 1.0
    if not is_spilled and not is_shown and not case.sees("sysmem-fallback-named"):
        return None
    return Finding(
        rule="gpu-memory-spilled-to-host",
        severity="warning",
        certainty="decided" if is_shown or is_spilled else "likely",
        problem="GPU memory was moved into the machine's memory, which is slow.",
        because="Windows' driver lends the machine's memory to a full card",
        evidence=case.evidence("torch-out-of-memory", "shared-gpu-memory", "sysmem-fallback-named"),
        fixes=(
            Fix(text="use less than the card has: a smaller micro-batch"),
            Fix(
                text='without WSL: set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem '
                "Fallback\" in NVIDIA's control panel",
                where="powershell",
                changes="a full card is an error again",
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
