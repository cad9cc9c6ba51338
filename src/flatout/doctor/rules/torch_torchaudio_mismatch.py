"""torchaudio was built for another torch version.

**Checks.** torchaudio libraries that do not load, and pip's messages about the pair. On the
machine: the torch version that torchaudio's metadata requires.

**Why it matters.** torchaudio's extension is compiled against one version of torch.

**Example.** `OSError: .../torchaudio/lib/libtorchaudio.so: undefined symbol: _ZN3c10...`

**Fix.** Install both together from the same index; asks first.

**Source.** docs.pytorch.org/audio/stable/installation.html, table of versions.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, unmet
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.doctor.torch_install import torch_install
from flatout.schema.finding import Finding
from flatout.schema.machine import Machine

_SIGNS = ("torchaudio-broken",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="torch-torchaudio-mismatch",
        severity="error",
        problem="torchaudio was built for another torch version.",
        evidence=case.evidence(*_SIGNS),
        fixes=(torch_install(case.machine, "torchaudio"),),
        confirm=("pip list | grep -i torch",),
    )


def _in_facts(machine: Machine) -> Facts:
    """torchaudio's own requirement."""
    return unmet(machine, {"torch"}, {"torchaudio"})


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="torchaudio-broken", read=_in_facts),),
    signatures=(
        signature(
            "torchaudio-broken",
            "torchaudio",
            pattern=r"torchaudio[^\n]{0,200}(?:undefined symbol|could not be found)|"
            r"WinError 12[67]\][^\n]{0,300}torchaudio|PyTorch and (?:TorchAudio|"
            r"torchaudio) were compiled with different",
        ),
    ),
    explains=(
        "extension-abi-mismatch",
        "windows-missing-runtime-dll",
    ),
)
