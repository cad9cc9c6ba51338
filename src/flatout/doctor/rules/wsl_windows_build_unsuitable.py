"""This Windows build has no GPU support for WSL, or broken support.

**Checks.** The Windows build (WSL needs 19044, which is Windows 10 21H2, or Windows 11), and
programs that cannot find DXCore. On the machine: the Windows build.

**Why it matters.** Windows gives WSL access to the GPU through `/dev/dxg`. Older builds lack it,
and even the newest driver does not change that.

**Example.** `dxcore initialization failed, continuing assuming a non-WSL environment`

**Fix.** Update Windows, then `wsl --update`; by hand.

**Source.** MicrosoftDocs/WSL: tutorials/gpu-compute.md; NVIDIA/nvidia-docker#1542;
microsoft/WSL#6773 (a preview).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

OLDEST_BUILD = 19044
# Insider builds between Windows 10 and 11, except Server 2022.
_PREVIEWS = frozenset(range(20150, 22000)) - {20348}


def check(case: Case) -> Finding | None:
    """A build that is too old, or a missing library that only newer Windows has."""
    build = case.machine.windows.build if case.machine.windows else None
    number = int(build.split(".")[2]) if build else None
    is_old = number is not None and number < OLDEST_BUILD
    failures = (
        "dxcore-missing", "nvml-blocked", "driver-request-failed", "dxg-missing", "cuda-no-device",
        "smi-cannot-communicate", "cuda-driver-insufficient",
    )  # fmt: skip
    is_preview = number in _PREVIEWS and case.is_wsl and case.sees(*failures)
    is_explicit = case.sees("dxcore-missing", "driver-request-failed")
    if not is_explicit and not is_preview and not (is_old and case.is_wsl):
        return None
    certainty: Certainty
    if case.sees("dxcore-missing") or (is_old and case.sees(*failures)):
        certainty = "decided"
    else:
        certainty = "likely"
    return Finding(
        rule="wsl-windows-build-unsuitable",
        severity="error",
        certainty=certainty,
        problem="This Windows build does not support GPUs in WSL.",
        because=f"this is build {number}; GPU support in WSL needs {OLDEST_BUILD}" if is_old
        else f"build {number} was a preview with unreliable GPU support" if is_preview
        else "DXCore, which shares the GPU with WSL, does not start",
        evidence=case.evidence(*failures, "windows-build"),
        fixes=(
            Fix(
                text=(
                        "update Windows to 10 21H2 or 11, then update WSL and the Windows "
                        "NVIDIA driver"
                    ),
                commands=("winver", "wsl --update", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro and container",
            ),
        ),
        confirm=("cmd.exe /c ver", "ls -l /dev/dxg /usr/lib/wsl/lib"),
    )  # fmt: skip


def _in_facts(machine: Machine) -> Facts:
    """WSL on a build older than the first that shares its GPU."""
    build = machine.windows.build if machine.windows else None
    if not machine.host.wsl or build is None or int(build.split(".")[2]) >= OLDEST_BUILD:
        return ()
    return fact(f"Windows {build}", "cmd.exe")


RULE = Rule(
    check=check,
    prior=75,
    fact_checks=(FactCheck(sign="windows-build", read=_in_facts),),
    signatures=(
        signature(
            "dxcore-missing",
            "dxcore initialization failed",
            "libdxcore.so",
            pattern=r"dxcore initialization failed|libdxcore\.so: cannot open",
        ),
        signature("driver-request-failed", "driver error: failed to process request"),
        signature(
            "dxg-missing", "/dev/dxg", pattern=r"/dev/dxg'?: No such file|/dev/dxg.{0,20}not found"
        ),
    ),
    explains=(
        "wsl-gpu-stack-incomplete",
        "docker-nvidia-toolkit-missing",
        "driver-too-old-for-cuda-runtime",
        "cuda-visible-devices-wrong",
    ),
)
