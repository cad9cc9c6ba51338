"""The program requests a GPU that does not exist or is hidden.

**Checks.** CUDA's "invalid device ordinal", framework errors about an index out of range, and a
CUDA_VISIBLE_DEVICES that hides all GPUs. On the machine: the variable and the number of GPUs.

**Why it matters.** CUDA_VISIBLE_DEVICES selects and renumbers GPUs: with `=5`, the card is
`cuda:0`. An invalid entry hides itself and all entries after it; an empty one hides every card.

**Example.** `CUDA error: invalid device ordinal`

**Fix.** Choose from `nvidia-smi -L`, and count indices from 0 among the visible GPUs; safe.

**Source.** https://docs.nvidia.com/cuda/cuda-c-programming-guide (CUDA environment variables)
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import counted_text

_EXPLICIT = (
    "device-ordinal", "device-count-assert", "device-index-outside", "devices-hidden",
    "container-device-unknown",
)  # fmt: skip
_NONE = ("cuda-no-device", "device-requested")


def check(case: Case) -> Finding | None:
    """An invalid index, GPUs hidden by the variable, or an installed driver that finds none."""
    if not case.sees(*_EXPLICIT, *_NONE):
        return None
    is_set = case.sees("visible-devices-set")
    certainty: Certainty = (
        "decided" if case.sees(*_EXPLICIT) else "likely" if is_set else "possible"
    )
    if certainty == "possible" and case.sees("torch-sees-none") and not case.is_container:
        # torch reports this only if a driver answers; without a driver its message differs.
        certainty = "likely"
    return Finding(
        rule="cuda-visible-devices-wrong",
        severity="error",
        certainty=certainty,
        problem="The program requests a GPU that does not exist, or all GPUs are hidden.",
        because="indices start at 0 and count only the GPUs in CUDA_VISIBLE_DEVICES",
        evidence=case.evidence(*_EXPLICIT, *_NONE, "visible-devices-set"),
        fixes=(
            Fix(
                text="select GPUs that exist, and use index 0 for the first",
                safety="safe",
                commands=("nvidia-smi -L", "export CUDA_VISIBLE_DEVICES=0"),
                changes="only this shell",
                undo="unset CUDA_VISIBLE_DEVICES",
            ),
        ),
        confirm=("nvidia-smi -L", "printenv CUDA_VISIBLE_DEVICES"),
    )


def _outside(machine: Machine) -> Facts:
    """The variable contains an index without a GPU."""
    text = (machine.variables or {}).get("CUDA_VISIBLE_DEVICES", "")
    indices = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not machine.gpus or all(index < len(machine.gpus) for index in indices):
        return ()
    return (
        *fact(f"CUDA_VISIBLE_DEVICES={text}", "environment"),
        *fact(f"{counted_text(len(machine.gpus), 'GPU')}", "NVML"),
    )


def _hidden(machine: Machine) -> Facts:
    """The variable is set and hides every GPU."""
    text = (machine.variables or {}).get("CUDA_VISIBLE_DEVICES")
    if not machine.gpus or text is None or text.strip() not in ("", "-1"):
        return ()
    return fact(f"CUDA_VISIBLE_DEVICES={text}", "environment")


RULE = Rule(
    check=check,
    prior=55,
    fact_checks=(
        FactCheck(sign="device-index-outside", read=_outside),
        FactCheck(sign="devices-hidden", read=_hidden, severity="warning"),
    ),
    signatures=(
        signature(
            "device-index-outside",
            "Invalid device id",
            "invalid GPU id",
            "Invalid CUDAPlace",
            "But your machine only has",
            "visible device count",
            "number of visible devices",
            "no devices matching",
            "unknown device",
            "devices matching that specification",
            "No slot",
            "torch.cuda.device_count",
            "GPU device may be out of range",
            "GPU number on your machine",
            pattern=r"^\s*(?:\w*Error: )?Invalid device id\b|listed an invalid GPU id"
            r"|Invalid CUDAPlace\(\d|your machine only has|exceeds? (?:the )?(?:number of )?visible"
            r" devices|/(?:device:)?GPU:[1-9]\d* unknown device|No slot '\d+' specified on host"
            r"|(?:GPU|cuda):\d+.{0,80}no devices matching that specification"
            r"|GPU device may be out of range|GPU number on your machine is [1-9]",
        ),
        signature(
            "device-requested",
            "requested",
            pattern=r"Invalid CUDA '?(?:--)?device=?\s?[1-9][\d,]*'? requested"
            r"|CUDA unavailable, invalid device [1-9][\d,]* requested",
        ),
        signature(
            "container-device-unknown",
            "unknown device",
            "unknown device id",
            pattern=r"nvidia-container-cli.{0,40}device error: \S{0,60}:? ?unknown device"
            r"|unknown device id: ?\d",
        ),
        signature(
            "devices-hidden",
            "CUDA_VISIBLE_DEVICES",
            "hides all GPUs from CUDA",
            pattern=r"CUDA_VISIBLE_DEVICES(?:['\"]?\]?\s?[=:]\s?)(?:['\"]?-1|''|\"\"(?!\"))"
            r"|CUDA_VISIBLE_DEVICES is set to (?:-1|an empty)|hides all GPUs from CUDA"
            r"|CUDA_VISIBLE_DEVICES=(?=\s|$)",
        ),
        signature(
            "visible-devices-set",
            "CUDA_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
            pattern=r"(?:CUDA|NVIDIA)_VISIBLE_DEVICES(?:['\"]?\]?\s?[=:]\s?)['\"]?(?:\d|GPU-|MIG-)",
        ),
        signature("torch-sees-none", "No CUDA GPUs are available"),
    ),
)
