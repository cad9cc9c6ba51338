"""A card runs in TCC mode under Windows; WSL needs WDDM.

**Checks.** The column "TCC/WDDM" of Windows' nvidia-smi, and devices that WSL cannot open. On the
machine: the driver model reported by NVML.

**Why it matters.** Windows shares a GPU with WSL through its display driver model (WDDM). A card in
TCC mode is not shared, and one such card can prevent the others from working.

**Example.** `0  NVIDIA L40S  TCC` in Windows, `GPU access blocked by the operating system` in WSL

**Fix.** `nvidia-smi -g INDEX -dm 0` as administrator, then restart Windows; by hand. Some cards
need a vGPU or RTX Enterprise driver for WDDM.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/; microsoft/WSL#9952, #13027.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_CLOSED = ("nvml-blocked", "smi-cannot-communicate", "wsl-no-adapters")


def check(case: Case) -> Finding | None:
    """TCC is named together with WSL, or WSL lists devices but cannot open them."""
    is_tcc = case.sees("gpu-in-tcc") or any(g.driver_model == "TCC" for g in case.machine.gpus)
    is_closed = case.is_wsl and case.sees("smi-no-handle", "smi-no-devices")
    is_wsl = case.is_wsl or case.sees("nvml-blocked")
    # Windows runs data center cards in TCC mode by default.
    is_usual = case.sees(*_CLOSED) and case.sees("datacenter-card")
    is_closed = is_closed or case.is_wsl and is_usual
    if not is_closed and not (is_tcc and is_wsl):
        return None
    return Finding(
        rule="wsl-gpu-in-tcc-mode",
        severity="error",
        certainty="decided" if is_tcc else "likely",
        problem="Windows runs a card in TCC mode, which it does not share with WSL.",
        because="WSL sees only cards in WDDM mode",
        evidence=case.evidence("gpu-in-tcc", *_CLOSED, "smi-no-handle", "smi-no-devices"),
        fixes=(
            Fix(
                text="switch the card to WDDM as administrator, then restart Windows",
                commands=("nvidia-smi -g 0 -dm 0",),
                where="powershell",
                changes="the card's driver model, from the next boot on",
                undo="nvidia-smi -g 0 -dm 1",
            ),
        ),
        confirm=("nvidia-smi.exe --query-gpu=index,name,driver_model.current --format=csv",),
    )


def _in_facts(machine: Machine) -> Facts:
    """A card in TCC mode."""
    found = [gpu for gpu in machine.gpus if gpu.driver_model == "TCC"]
    return fact(f"GPU {found[0].index} runs in TCC mode", "NVML") if found else ()


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(
        FactCheck(sign="gpu-in-tcc", read=_in_facts),
    ),
    signatures=(
        signature(
            "gpu-in-tcc",
            "TCC",
            pattern=r"\|.{0,60}\bTCC\s*\||\bTCC mode\b|driver.?model.{0,30}\bTCC\b|,\s*TCC\b"
            r"|Current\s*:\s*TCC",
        ),
        signature(
            "datacenter-card",
            "Tesla", "A100", "A800", "A40", "A30", "A16", "A10", "H100", "H200", "H800", "L4",
            "L20", "L40", "L40S", "H20", "B200", "V100", "P100", "P40", "T4", "M40", "K80",
            pattern=r"\b(?:Tesla [A-Z]\d+|[AHB](?:100|200|800)|A(?:40|30|16|10)G?|H20"
            r"|L(?:4|20|40)S?|V100|P100|P40|T4|M40|K80)\b",
        ),
    ),
    explains=("wsl-linux-driver-installed-inside", "wsl-gpu-stack-incomplete",
              "nvidia-runtime-no-cgroups-wrong"),
)  # fmt: skip
